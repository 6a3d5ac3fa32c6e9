"""tf-slim's own tests, with slimguard's functions in place of slim's."""

import os
import re
import subprocess

import pytest

from tests.helpers.children import ROOT, forked_python

tf_slim = pytest.importorskip('tf_slim')

PLUGINS = str(ROOT / 'tests' / 'programs')
PYTEST = 'import sys; sys.path[:1] = [%r]; import pytest; sys.exit(pytest.main(sys.argv[1:]))'


def passed_and_failed(plugin, suite):
    """Runs one of the test files that ship with tf-slim; returns the names in either list."""
    path = os.path.join(os.path.dirname(tf_slim.__file__), *suite.split('/'))
    options = ['-rpf', '-q', '-p', 'no:cacheprovider', '-p', plugin]
    options += ['-c', os.devnull, '--rootdir', os.path.dirname(path)]
    arguments = ['-c', PYTEST % PLUGINS, *options, path]
    run = forked_python(*arguments, finds='tensorflow', stderr=subprocess.STDOUT).stdout
    assert re.search(r'\d+ passed', run), run
    # "PASSED learning_test.py::TrainTest::testTrainWithTrace"
    names = {
        outcome: set(re.findall(r'^%s .*?::(\S+)' % outcome, run, flags=re.MULTILINE))
        for outcome in ('PASSED', 'FAILED')
    }
    return names['PASSED'], names['FAILED']


@pytest.mark.full
@pytest.mark.parametrize('suite', ['learning_test.py', 'training/training_test.py'])
def test_what_passes_with_slim_passes_with_slimguard(suite):
    with_slim, _ = passed_and_failed('slimguard', suite)
    with_slimguard, _ = passed_and_failed('slim_replaced', suite)
    assert len(with_slim) > 10
    assert with_slim <= with_slimguard, sorted(with_slim - with_slimguard)
