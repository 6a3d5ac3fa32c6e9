"""tf-slim's own tests, with slimguard's functions in place of slim's."""

import os
import re
import subprocess

import pytest

from tests.helpers.children import ROOT, forked_python

tf_slim = pytest.importorskip('tf_slim')

PLUGINS = str(ROOT / 'tests' / 'programs')
PYTEST = 'import sys; sys.path[:1] = [%r]; import pytest; sys.exit(pytest.main(sys.argv[1:]))'


def passed_and_failed(plugin, suite, *names):
    """Runs tests of a file that ships with tf-slim; returns those that passed and that failed."""
    path = os.path.join(os.path.dirname(tf_slim.__file__), *suite.split('/'))
    options = ['-rpf', '-q', '-p', 'no:cacheprovider', '-p', plugin]
    options += ['-c', os.devnull, '--rootdir', os.path.dirname(path)]
    tests = [path + '::' + name for name in sorted(names)] or [path]
    arguments = ['-c', PYTEST % PLUGINS, *options, *tests]
    run = forked_python(*arguments, finds='tensorflow', stderr=subprocess.STDOUT).stdout
    assert re.search(r'\d+ (passed|failed)', run), run
    # "PASSED learning_test.py::TrainTest::testTrainWithTrace"
    return [
        set(re.findall(r'^%s .*?::(\S+)' % outcome, run, flags=re.MULTILINE))
        for outcome in ('PASSED', 'FAILED')
    ]


@pytest.mark.full
@pytest.mark.parametrize('suite', ['learning_test.py', 'training/training_test.py'])
def test_what_passes_with_slim_passes_with_slimguard(suite):
    passed, failed = passed_and_failed('slim_replaced', suite)
    assert len(passed) > 10
    if failed:
        passes_with_slim, _ = passed_and_failed('slimguard', suite, *failed)
        assert not passes_with_slim
