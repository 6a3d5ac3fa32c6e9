"""slimguard puts the names back that tf-slim needs, and changes nothing else."""

import ast
import functools
import importlib
import os
import pathlib
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.compat import repairs
from slimguard.compat.repairs import INSTALL_TENSORFLOW
from tests.helpers.children import ROOT, forked_python, python

VERSION = tuple(int(part) for part in tf.__version__.split('.')[:2])

tf1 = tf.compat.v1


# Then code can import slimguard's modules, but slimguard/__init__.py does not run: it asks for
# TensorFlow, and puts the names back.
_NOT_INITIALIZED = """
import types
package = sys.modules['slimguard'] = types.ModuleType('slimguard')
package.__path__ = [%r]
""" % slimguard.__path__[0]


def run_python(code, without=(), run=python, initializes=True):
    """Runs code in a Python of its own, in which some packages cannot be imported."""
    begin = 'import sys\nsys.path[:0] = {!r}\nsys.modules.update(dict.fromkeys({!r}))\n'.format(
        [str(ROOT)], list(without)
    )
    begin += '' if initializes else _NOT_INITIALIZED
    done = run('-c', begin + textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_beside_tensorflow(code, **kwargs):
    """As `run_python`, for code for which TensorFlow may be imported already."""
    return run_python(code, run=functools.partial(forked_python, finds='tensorflow'), **kwargs)


def used_names(folder):
    """TensorFlow's dotted names in the Python files of a folder."""
    names = set()
    for path in pathlib.Path(folder).rglob('*.py'):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding='utf-8'))))
        full = {}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                full.update((n.asname or n.name, node.module + '.' + n.name) for n in node.names)
            elif isinstance(node, ast.Import):
                full.update((n.asname or n.name, n.name) for n in node.names)
        uses = [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
        names.update(full.values())
        names.update('{}.{}'.format(full.get(use.value.id), use.attr) for use in uses)
    return {name for name in names if name.startswith('tensorflow.') and not name.endswith('*')}


def is_there(name):
    """Whether `import a.b` or `from a import b` works for the name `a.b`."""
    parent, _, child = name.rpartition('.')
    try:
        getattr(importlib.import_module(parent), child)
        return True
    except (AttributeError, ImportError):
        return _is_module(name)


def _is_module(name):
    try:
        importlib.import_module(name)
        return True
    except ImportError:
        return False


@pytest.fixture(scope='module')
def slim():
    return compat.import_slim()


@pytest.fixture
def slim_folder(slim):
    if slim.__name__ != 'tf_slim':
        pytest.skip('tf.contrib.slim comes with its TensorFlow: it lacks nothing')
    return os.path.dirname(slim.__file__)


@pytest.mark.full
def test_tf_slim_finds_every_name_that_it_uses(slim_folder):
    assert not sorted(name for name in used_names(slim_folder) if not is_there(name))


@pytest.mark.full
def test_the_missing_names_are_put_back_and_none_that_is_there(slim_folder):
    run_beside_tensorflow(
        """
        from tests.compat import test_compat
        from slimguard.compat import repairs

        missing = {n for n in test_compat.used_names(%r) if not test_compat.is_there(n)}
        rows = [row.full_name for row in repairs.TABLE if isinstance(row.home, str)]
        there = set(filter(test_compat.is_there, rows))
        put_back = {repair.name for repair in test_compat.compat.revive()}
        assert missing <= put_back and put_back.isdisjoint(there)
        """
        % slim_folder,
        initializes=False,
    )


def test_nothing_that_tensorflow_has_is_replaced():
    run_beside_tensorflow(
        """
        import tensorflow
        import tensorflow.compat.v1
        from slimguard import compat
        from slimguard.compat import repairs

        def names():
            loaded = [(key, m) for key, m in sys.modules.items() if key.startswith('tensorflow')]
            return {(key, n): v for key, m in loaded for n, v in list(vars(m).items())}

        for row in repairs.TABLE:  # revive() imports these modules, if they are not yet
            repairs.import_or_none(row.module)
        before = names()
        compat.revive()
        after = names()
        replaced = [before[key] for key in before if after[key] is not before[key]]
        # A lazy loader gives its place to what it loads: here two had nothing to load.
        assert all('LazyLoader' in type(value).__name__ for value in replaced), replaced
        assert len(replaced) <= 2
        """,
        initializes=False,
    )


@pytest.mark.parametrize('row', repairs.TABLE, ids=lambda row: row.full_name)
def test_a_row_of_the_table_names_what_tensorflow_has_there_or_had(row, slim):
    """If this TensorFlow still has the name, it is the same object as in the table."""
    module = repairs.import_or_none(row.module)
    if isinstance(row.home, str):
        assert repairs.public(row.home) is not None
        assert getattr(module, row.name, repairs.public(row.home)) is repairs.public(row.home)
    elif VERSION >= (2, 13):  # until 2.12, TensorFlow itself has them
        assert repairs.source_of(row)


def test_reviving_twice_is_reviving_once(slim):
    made = compat.revive()
    values = [is_there(repair.name) for repair in made]
    assert compat.revive() == made
    assert len(set(made)) == len(made)
    assert all(values)


@pytest.mark.parametrize('before', ['tensorflow', 'tf_slim', 'slimguard'])
def test_the_names_are_there_once_slimguard_and_tensorflow_are_imported_in_any_order(before):
    run_python(
        """
        import %s
        assert ('tensorflow' in sys.modules) == (%r != 'slimguard')
        import slimguard
        import tensorflow.compat.v1 as tf
        from slimguard.compat import repairs

        assert not repairs.missing_rows()
        assert 'tf_keras' not in sys.modules
        assert 'slimguard' not in type(sys.modules['tensorflow'].__loader__).__module__
        tf.disable_v2_behavior()
        tf.layers.dense(tf.placeholder(tf.float32, [2, 3]), 1)
        """
        % (before, before)
    )


def test_batch_norm_trains(slim):
    """On images, for which tf-slim uses the Keras layer; it computes rank 2 itself."""
    images = np.random.RandomState(0).normal(3.0, 2.0, (8, 4, 4, 2)).astype(np.float32)
    inputs = tf.constant(images)
    net = slim.batch_norm(inputs, is_training=True, decay=0.5, scope='bn')
    loss = tf1.losses.mean_squared_error(tf.ones_like(net), net)
    train_op = slim.learning.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.1))
    variables = {v.op.name: v for v in tf1.global_variables() if v.op.name.startswith('bn/')}
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        before = session.run(variables)
        session.run(train_op)
        after = session.run(variables)
    assert set(before) == {'bn/beta', 'bn/moving_mean', 'bn/moving_variance'}
    assert not any(np.array_equal(before[name], after[name]) for name in before)


def test_a_step_with_clipped_and_summarized_gradients_runs(slim):
    loss = tf1.losses.mean_squared_error([[0.0]], slim.linear([[1.0]], 1))
    train_op = slim.learning.create_train_op(
        loss,
        tf1.train.GradientDescentOptimizer(0.1),
        clip_gradient_norm=1.0,
        gradient_multipliers={'fully_connected/weights': 0.5},
        summarize_gradients=True,
    )
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert session.run(train_op) > session.run(loss)


@pytest.mark.full
@pytest.mark.skipif(VERSION < (2, 0), reason='TensorFlow 1 has the layers itself')
def test_without_keras_batch_norm_says_what_to_install():
    out = run_beside_tensorflow(
        """
        import slimguard
        import tf_slim as slim
        import tensorflow as tf

        assert slim.fully_connected(tf.zeros([2, 3]), 1) is not None  # needs no Keras
        try:
            slim.batch_norm(tf.zeros([2, 4, 4, 3]))
        except ImportError as error:
            print(error)
        print(slimguard.compat.report())
        """,
        without=['keras', 'tf_keras'],
    )
    package = 'tf-keras' if VERSION >= (2, 16) else 'keras'
    advice = 'pip install "{}=={}.{}.*"'.format(package, *VERSION)
    error, report = out.split('\n', 1)
    assert advice in error
    assert advice in report.partition('missing:')[2]
    assert 'BatchNormalization' not in report.partition('missing:')[0]


def test_without_tensorflow_the_error_says_what_to_install():
    out = run_python(
        """
        from slimguard import compat
        for function in compat.require_tensorflow, compat.revive, compat.import_slim:
            try:
                function()
            except ImportError as error:
                print(error)
        print(compat.report())
        """,
        without=['tensorflow'],
        initializes=False,
    )
    errors, report = out.splitlines()[:3], out.split('\n', 3)[3]
    for advice in 'the TensorFlow that you have', INSTALL_TENSORFLOW, 'tensorflow-cpu':
        assert all(advice in error for error in errors)
    assert INSTALL_TENSORFLOW in report


def test_without_tf_slim_contrib_serves_or_the_error_says_what_to_install():
    out = run_beside_tensorflow(
        """
        from slimguard import compat

        try:
            print(compat.import_slim().__name__)
        except ImportError as error:
            print(error)
        print(compat.report())
        """,
        without=['tf_slim'],
    )
    slim, report = out.split('\n', 1)
    if VERSION < (2, 0):
        assert slim.endswith('contrib.slim')
        assert 'missing: nothing' in report
    else:
        assert 'pip install tf-slim' in slim
        assert 'pip install tf-slim' in report


def test_the_report_shows_versions_and_repairs(slim):
    report = compat.report()
    versions = dict(report.versions)
    assert versions['TensorFlow'] == tf.__version__
    assert versions['numpy'] == np.__version__
    assert set(versions) >= {'Python', 'tf-slim', 'tf-keras', 'protobuf'}
    assert ('TF_USE_LEGACY_KERAS' in versions) == (VERSION >= (2, 16))
    assert report.repairs == compat.revive()
    text = str(report)
    for name, value in report.versions + report.repairs:
        assert any(line.split() == [name] + value.split() for line in text.splitlines())
    assert 'missing: nothing' in text
