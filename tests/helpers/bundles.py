"""Bundles that tests write, and damage."""

import os
import signal
import time

import tensorflow as tf

from slimguard import gate
from slimguard.diagnosis import bundle
from slimguard.diagnosis.diagnose import diagnose
from slimguard.incidents.incident import Incident
from tests.helpers.children import forked_python

tf1 = tf.compat.v1


def incident_of(failed, step=None):
    finding = gate.explain(failed.labels)
    return Incident(
        step=failed.steps if step is None else step,
        loss=float(failed.loss),
        reason=finding.reason,
        tensors=finding.tensors,
        strategy='hook',
        time=time.time(),
    )


def write(failed, logdir, **kwargs):
    found = diagnose(failed.session, failed.capture, failed.values, failed.labels)
    incident = incident_of(failed, kwargs.pop('step', None))
    return bundle.write(
        str(logdir), failed.session, failed.capture, incident, failed.values, found, **kwargs
    )


def _crc_of_byte(value):
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC_OF_BYTES = [_crc_of_byte(byte) for byte in range(256)]


def masked_crc(content):
    """The CRC-32C of a block as a table of LevelDB keeps it."""
    value = 0xFFFFFFFF
    for byte in content:
        value = (value >> 8) ^ _CRC_OF_BYTES[(value ^ byte) & 255]
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# What killed processes leave.

KILLED = """
import os, signal, sys
from slimguard.diagnosis.bundle.folders import Making
making = Making(sys.argv[1])
open(os.path.join(making.path, 'step.pb'), 'w').close()
os.kill(os.getpid(), signal.SIGKILL)
"""


def hidden(logdir):
    return [name for name in os.listdir(str(logdir / 'slimguard')) if name.startswith('.making-')]


def kill_one(logdir):
    (logdir / 'slimguard').mkdir(exist_ok=True)
    run = forked_python('-c', KILLED, logdir / 'slimguard')
    assert run.returncode == -signal.SIGKILL, run.stderr
    (name,) = hidden(logdir)
    return logdir / 'slimguard' / name
