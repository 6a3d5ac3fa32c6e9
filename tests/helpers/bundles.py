"""Bundles that tests write."""

import os
import signal
import time

from slimguard import gate
from slimguard.diagnosis import bundle
from slimguard.diagnosis.diagnose import diagnose
from slimguard.incidents.incident import Incident
from tests.helpers.children import forked_python


def incident_of(failed, step=None, reason=None):
    finding = gate.explain(failed.labels)
    return Incident(
        step=failed.steps if step is None else step,
        loss=float(failed.loss),
        reason=reason or finding.reason,
        tensors=finding.tensors,
        strategy='hook',
        time=time.time(),
    )


def write(failed, logdir, step=None, reason=None, **kwargs):
    found = diagnose(failed.session, failed.capture, failed.values, failed.labels)
    incident = incident_of(failed, step, reason)
    return bundle.write(
        str(logdir), failed.session, failed.capture, incident, failed.values, found, **kwargs
    )


def variables_of(it):
    """The values of all variables in a bundle that was read, by the names of their ops."""
    names = list(it.exported.names['variables'])
    return {name: value for part in it.variables(names) for name, value in part.items()}


# Leftovers of killed processes.

KILLED = """
import os, signal, sys
import tensorflow as tf
from slimguard.system import files
from tests.helpers import zoo
from tests.helpers.bundles import write
files.write_atomically = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with tf.Graph().as_default():
    write(zoo.failed('log_of_zero'), sys.argv[1])
"""


def kill_one(logdir):
    """Leaves an unfinished bundle, as a killed process does; returns its folder."""
    run = forked_python('-c', KILLED, logdir)
    assert run.returncode == -signal.SIGKILL, run.stderr
    (name,) = os.listdir(str(logdir / 'slimguard'))
    return logdir / 'slimguard' / name
