"""tf.contrib under `run --tf1`: deep paths, and names that no longer exist."""

import re

import pytest
import tensorflow as tf

from slimguard.unedited import tf1_names, tf1_table
from tests.helpers.children import ROOT, forked_python

NATIVE = tf.__version__.startswith('1.')
on_tensorflow_2 = pytest.mark.skipif(NATIVE, reason='TensorFlow 1 has all of tf.contrib')


def run_tf1(*arguments):
    return forked_python('-m', 'slimguard', 'run', '--tf1', *arguments)


def run_source(tmp_path, source):
    (tmp_path / 'script.py').write_text(source)
    return run_tf1(tmp_path / 'script.py')


@pytest.mark.full
def test_deep_paths_work_and_what_is_never_used_stops_nobody():
    run = run_tf1(ROOT / 'tests' / 'data' / 'scripts' / 'deep_imports.py')
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == 'shape [1, 2, 2, 1]'


@pytest.mark.full
@on_tensorflow_2
def test_what_is_gone_raises_where_it_is_used(tmp_path):
    source = 'from tensorflow.contrib.cudnn_rnn import CudnnLSTM\nclass Mine(CudnnLSTM): pass'
    run = run_source(tmp_path, source)
    assert run.returncode == 1
    *_, place, code, error, _ = [line for line in run.stderr.splitlines() if '^^' not in line]
    assert 'script.py", line 2' in place
    assert code.strip() == source.splitlines()[1]
    said = r'AttributeError: TensorFlow 2\.\S+ has no tf.contrib.cudnn_rnn.CudnnLSTM: tf.contrib '
    assert re.match(said, error) and 'use tf.keras.layers.LSTM' in error


@pytest.mark.full
@on_tensorflow_2
def test_an_import_of_a_placeholder_adds_nothing_to_the_modules_of_libraries(tmp_path):
    run = run_source(
        tmp_path,
        'import tensorflow.contrib.slim as slim\n'
        'from tensorflow.contrib.slim.python.slim.nets import nothing\n'
        'assert not hasattr(slim.nets, "nothing")\n'
        'import tensorflow.contrib.slim.python.slim.nets.nothing',
    )
    error = run.stderr.splitlines()[-2]
    assert error.startswith('ModuleNotFoundError: TensorFlow 2.')
    assert 'has no tf.contrib.slim.python.slim.nets.nothing: tf.contrib was dropped' in error


def is_there(name):
    value = tf1_names.namespace()
    for part in name.split('.')[1:]:
        value = getattr(value, part, None)
    return value is not None


@on_tensorflow_2
def test_what_is_said_to_replace_the_old_is_there():
    gone = dict(tf1_table.GONE)
    names = {name for each in gone.values() for name in re.findall(r'\btf(?:\.\w+)+', each)}
    names -= {'tf.estimator', 'tf.contrib'}  # the table says that these are gone
    assert len(names) > 15
    assert [name for name in sorted(names) if not is_there(name)] == []
