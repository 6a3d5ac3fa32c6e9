"""Scripts of 2016 to 2020, run unchanged and guarded; and the names of TensorFlow 1 they use."""

import glob
import os
import re
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from slimguard.unedited import tf1_names
from tests.helpers.children import ROOT, forked_python, python

tf1 = tf.compat.v1

SCRIPTS = str(ROOT / 'tests' / 'data' / 'scripts')
NATIVE = tf.__version__.startswith('1.')
RUN = ['-m', 'slimguard', 'run'] + ([] if NATIVE else ['--tf1'])

on_tensorflow_2 = pytest.mark.skipif(NATIVE, reason='TensorFlow 1 has all its names')


def script(name):
    return os.path.join(SCRIPTS, name)


def bad_variables(logdir):
    """The names of non-finite variables in all checkpoints below `logdir`; there must be some."""
    checkpoints = glob.glob(os.path.join(logdir, '**', '*.index'), recursive=True)
    assert len(checkpoints) > 1
    bad = []
    for checkpoint in checkpoints:
        reader = tf1.train.load_checkpoint(os.path.splitext(checkpoint)[0])
        for name, dtype in reader.get_variable_to_dtype_map().items():
            if dtype.is_floating and not np.all(np.isfinite(reader.get_tensor(name))):
                bad.append(name)
    return bad


@pytest.mark.parametrize(
    'name, arguments, last_line',
    [
        ('train_session.py', ['--save_dir={0}', '--nan_batch=5'], 'step 19: loss 0.'),
        (
            'train_tfrecords.py',
            ['--log_dir={0}/log', '--dataset_dir={0}', '--nan_record=20'],
            'final loss 0.',
        ),
        ('train_supervisor.py', ['--logdir={0}', '--nan_batch=3'], 'accuracy 0.'),
    ],
)
def test_an_old_script_runs_unchanged_and_survives_a_nan(tmp_path, name, arguments, last_line):
    arguments = [argument.format(tmp_path) for argument in arguments]
    run = forked_python(*RUN + ['--on_nan=skip', script(name)] + arguments)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].startswith(last_line)
    assert np.isfinite(float(run.stdout.split()[-1]))
    assert 'incident 1 ' in run.stderr, 'there was no NaN'
    assert bad_variables(str(tmp_path)) == []


def test_by_default_a_nan_ends_the_script_with_our_error(tmp_path):
    arguments = [script('train_clones.py'), '--train_dir=%s' % tmp_path, '--nan_sample=20']
    run = forked_python(*RUN + arguments)
    assert run.returncode == 1
    said = run.stderr[run.stderr.rindex('slimguard.NanLossError: ') :].splitlines()
    assert 'bad data: ' in said[0]
    command = 'to see what happened: python -m slimguard report %s' % tmp_path
    line = r'slimguard: guarded train_op: \d steps, 1 incident in this run \(raise 1\)$'
    assert re.match(line, said[-1])
    assert said.count(command) == 1 and said[-2] == command
    assert bad_variables(str(tmp_path)) == []


@pytest.mark.full
def test_names_and_flags_of_tensorflow_1():
    arguments = ['--log_dir=here', '--batch_size', '3', 'more']
    run = forked_python('-m', 'slimguard', 'run', '--tf1', script('names.py'), *arguments)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "['more'] here 3"


@on_tensorflow_2
def test_libraries_go_on_getting_the_tensorflow_that_is_installed(tmp_path):
    library = tmp_path / 'site-packages'
    library.mkdir()
    (library / 'library.py').write_text('import tensorflow as tf\n')
    (library / 'library_of_1.py').write_text('from tensorflow.contrib import eager\n')
    (tmp_path / 'own.py').write_text('import tensorflow as tf\n')
    (tmp_path / 'script.py').write_text(
        textwrap.dedent("""\
            import sys
            sys.path.append(sys.argv[1])
            import importlib
            import library, own
            import tensorflow as tf

            assert own.tf is tf
            assert library.tf is importlib.import_module('tensorflow') is sys.modules['tensorflow']
            assert hasattr(tf, 'placeholder') and not hasattr(library.tf, 'placeholder')
            assert not any(name.startswith('tensorflow.contrib') for name in sys.modules)
            assert tf.__file__ == library.tf.__file__
            try:
                import library_of_1
            except ImportError as error:
                assert "'tensorflow.contrib'" in str(error), error
            try:
                from tensorflow.examples.tutorials.mnist import input_data
            except ImportError:
                from tensorflow.contrib.slim import crf
            """)
    )
    run = forked_python(*RUN + [str(tmp_path / 'script.py'), str(library)])
    assert run.stderr.splitlines()[-2].startswith('ImportError: TensorFlow 2.'), run.stderr
    assert 'has no tf.contrib.slim.crf: tf.contrib was dropped' in run.stderr
    assert 'unedited/tf1_names.py' not in run.stderr


@pytest.mark.full
@on_tensorflow_2
def test_a_module_that_is_run_is_of_a_package_that_has_all_names(tmp_path, monkeypatch):
    package = tmp_path / 'site-packages' / 'trainer'
    package.mkdir(parents=True)
    (package / '__init__.py').write_text('from trainer.model import FLAGS\n')
    (package / 'model.py').write_text('import tensorflow as tf\nFLAGS = tf.app.flags.FLAGS\n')
    (package / 'train.py').write_text('from trainer import FLAGS\n')
    monkeypatch.chdir(package.parent)
    run = forked_python(*RUN + ['-m', 'trainer.train'])
    assert run.returncode == 0, run.stderr


@pytest.mark.full
@on_tensorflow_2
def test_keras_is_that_of_version_2_for_whoever_imports_it(tmp_path):
    (tmp_path / 'script.py').write_text(
        'import importlib\n'  # a library may import so; it gets TensorFlow's own modules
        'print(importlib.import_module("tensorflow.keras.layers").__name__)\n'
        'print(importlib.import_module("tensorflow.keras.layers").Dense.__module__)\n'
    )
    run = python(*RUN + [str(tmp_path / 'script.py')])
    assert run.returncode == 0, run.stderr
    # From 2.16 on, TensorFlow's own keras is version 3, and has an attribute `version`.
    package = 'tf_keras.' if hasattr(tf.keras, 'version') else 'keras.'
    assert run.stdout.splitlines()[-1].startswith(package)


@pytest.mark.every_cell
@on_tensorflow_2
@pytest.mark.parametrize(
    'name, message',
    [
        ('nothing', "module 'tensorflow' has no attribute 'nothing'"),
        (
            'contrib.crf.crf_decode',
            'has no tf.contrib.crf.crf_decode: tf.contrib was dropped in TensorFlow 2; '
            'use tfa.text.crf_log_likelihood',
        ),
        ('contrib.graph_editor.copy', 'slimguard has the parts that tf-slim and TensorFlow kept'),
        ('contrib.layers.crossed_column', 'for feature columns use tf.feature_column'),
        ('contrib.slim.nothing', 'slimguard has the parts that tf-slim and TensorFlow kept'),
        ('contrib.training.HParams', 'use an argparse.Namespace'),
    ],
)
def test_what_is_gone_is_named_and_what_replaced_it(name, message):
    with pytest.raises(AttributeError, match=message):
        value = tf1_names.namespace()
        for part in name.split('.'):
            value = getattr(value, part)


@on_tensorflow_2
def test_a_namespace_lists_its_names():
    tf = tf1_names.namespace()
    assert {'contrib', 'estimator', 'placeholder', 'train'} <= set(dir(tf))
    assert {'framework', 'layers', 'slim', 'training'} <= set(dir(tf.contrib))
    assert {'arg_scope', 'get_or_create_global_step'} <= set(tf.contrib.framework.__all__)
