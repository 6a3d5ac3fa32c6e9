"""Some damaged bundles; `python tests/programs/fuzz_bundles.py` makes thousands."""

import os

import pytest
import tensorflow as tf

from tests.helpers import zoo
from tests.helpers.bundles import write
from tests.helpers.children import ROOT, forked_python

pytestmark = pytest.mark.full


def fuzz(*arguments):
    run = forked_python(ROOT / 'tests' / 'programs' / 'fuzz_bundles.py', *arguments)
    assert run.returncode == 0, run.stdout + run.stderr[-5000:]
    return run.stdout


def test_a_damaged_bundle_of_another_tensorflow_is_an_error_and_takes_no_memory():
    assert ' 0 failures' in fuzz('--mutants=100', '--seed=1')


@pytest.mark.parametrize('name', ['dropout_decides', 'a_feed'])
def test_so_is_one_that_was_made_here_also_when_it_is_replayed(tmp_path, name):
    with tf.Graph().as_default():
        path = write(zoo.failed(name), tmp_path)
    assert os.path.isdir(path)
    assert ' 0 failures' in fuzz('--mutants=30', '--seed=2', '--bundle=' + path, '--replays')
