"""A training on a second device that runs, with and without soft placement.

XLA's device stands in for a GPU: it has memory of its own, and no kernel for a string.
"""

import json

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.children import ROOT, forked_python

HAS_DEVICE = tuple(map(int, tf.__version__.split('.')[:2])) >= (2, 12)
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not HAS_DEVICE, reason='such a device is in TensorFlow 2.12'),
]

FLAGS = {'TF_XLA_FLAGS': '--tf_xla_enable_xla_devices'}
PROGRAM = 'tests.helpers.second_device'


def train(logdir, policy, soft):
    return forked_python('-m', PROGRAM, logdir, policy, soft, cwd=str(ROOT), variables=FLAGS)


def bundles(logdir):
    return sorted((logdir / 'slimguard').glob('step-*'))


def assert_diagnosed(bundle):
    with open(str(bundle / 'incident.json')) as file:
        found = json.load(file)['diagnosis']
    assert found['trouble'] == 'log of 0 (1 of 24 values), in row 2'
    assert found['non_finite']['rows'] == [2]
    assert 'tf.math.log(x)' in found['line']['text']


@pytest.mark.parametrize('policy, soft', [('skip', '1'), ('rollback', '0')], ids=['soft', 'pinned'])
def test_bad_steps_are_held_and_told_on_a_second_device(tmp_path, policy, soft):
    done = train(tmp_path, policy, soft)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert np.isfinite(told['last'])
    assert 0 < told['there'] < told['ours']
    newest = slimguard.latest_finite_checkpoint(str(tmp_path))
    assert newest == str(tmp_path / 'model.ckpt-10')
    found = bundles(tmp_path)
    assert len(found) == 2
    for bundle in found:
        assert_diagnosed(bundle)
    # The replay is a process without that device.
    replayed = forked_python('-m', 'slimguard', 'replay', found[0], cwd=str(tmp_path))
    assert replayed.returncode == 0, replayed.stderr[-3000:]
    assert 'The failure came back: not finite: ' in replayed.stdout
    assert 'log of 0 (1 of 24 values)' in replayed.stdout


def test_raising_saves_the_last_good_state_of_a_second_device(tmp_path):
    done = train(tmp_path, 'raise', '0')
    assert done.returncode != 0
    assert 'NanLossError' in done.stderr and 'log of 0 (1 of 24 values)' in done.stderr
    newest = slimguard.latest_finite_checkpoint(str(tmp_path))
    assert newest == str(tmp_path / 'model.ckpt-3')
