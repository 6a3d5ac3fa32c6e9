"""The replay: the failure comes back out of its bundle, elsewhere, and nothing else is needed."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import bundle, replay
from slimguard.step import Replica
from tests import zoo
from tests.test_bundle import write

tf1 = tf.compat.v1

ROOT = os.path.dirname(os.path.dirname(slimguard.__file__))


@pytest.fixture(scope='module')
def bundles(tmp_path_factory):
    """A bundle of each training of the zoo, by name."""
    logdir = tmp_path_factory.mktemp('zoo')
    made = {}
    for name in zoo.ZOO:
        with tf.Graph().as_default():
            tf1.set_random_seed(1)
            made[name] = write(zoo.failed(name), logdir / name)
    return made


@pytest.mark.parametrize('name', sorted(zoo.ZOO))
def test_the_failure_comes_back_with_the_same_loss_and_diagnosis(bundles, name):
    it = bundle.read(bundles[name])
    with Replica(it.plain, it.variables) as replica:
        found = replay.replay(replica, it.values)
        assert found.came_back
        assert str(found.diagnosis) == it.text
        step = replica.step(it.values)
        loss = replica.session.run(replica.gate.loss, step.feed)
        np.testing.assert_equal(float(loss), bundle.number(it.incident['loss']))


SCRIPT = """
import sys
from slimguard import replay
for path in sys.argv[1:]:
    assert replay.main(path) == 0, path
"""


def test_it_needs_nothing_but_the_bundle_and_a_fresh_process(bundles, tmp_path):
    paths = []
    for name, path in bundles.items():
        # Moved, as to another machine.
        paths.append(str(tmp_path / name))
        os.rename(path, paths[-1])
    run = subprocess.run(
        [sys.executable, '-c', SCRIPT] + paths,
        cwd=str(tmp_path),
        env=dict(os.environ, PYTHONPATH=ROOT),
        capture_output=True,
        text=True,
    )
    for name, path in bundles.items():
        os.rename(str(tmp_path / name), path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count('The failure came back') == len(paths)
    for it in zoo.ZOO.values():
        assert it.says in run.stdout
