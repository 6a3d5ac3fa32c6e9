"""tf-slim's own tests, with slimguard's functions in place of slim's."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import slimguard

tf_slim = pytest.importorskip('tf_slim')

PLUGINS = str(pathlib.Path(__file__).resolve().parents[1] / 'programs')
# The slimguard under test, be it installed or a checkout.
ROOT = os.path.dirname(os.path.dirname(slimguard.__file__))


def passed_and_failed(plugin, suite):
    """Runs one of the test files that ship with tf-slim; returns the names in either list."""
    path = os.path.join(os.path.dirname(tf_slim.__file__), *suite.split('/'))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([ROOT, PLUGINS]))
    run = subprocess.run(
        [sys.executable, '-m', 'pytest', '-rpf', '-q', '-p', 'no:cacheprovider', '-p', plugin]
        + ['-c', os.devnull, '--rootdir', os.path.dirname(path), path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ).stdout
    assert re.search(r'\d+ passed', run), run
    # "PASSED learning_test.py::TrainTest::testTrainWithTrace"
    names = {
        outcome: set(re.findall(r'^%s .*?::(\S+)' % outcome, run, flags=re.MULTILINE))
        for outcome in ('PASSED', 'FAILED')
    }
    return names['PASSED'], names['FAILED']


@pytest.mark.slow
@pytest.mark.parametrize('suite', ['learning_test.py', 'training/training_test.py'])
def test_what_passes_with_slim_passes_with_slimguard(suite):
    with_slim, _ = passed_and_failed('slimguard', suite)
    with_slimguard, _ = passed_and_failed('slim_replaced', suite)
    assert len(with_slim) > 10
    assert with_slim <= with_slimguard, sorted(with_slim - with_slimguard)
