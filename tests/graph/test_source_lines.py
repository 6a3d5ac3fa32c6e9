"""The lines of the user's code that made the ops of a graph."""

import inspect
import linecache

import pytest

from slimguard.graph import source_lines
from slimguard.graph.source_lines import Origins, assigned_name

CELL = '<ipython-input-1>'
SOURCE = """\
import tensorflow as tf


def double(x):
    return tf.multiply(x, 2.0, name='double')


double(tf.constant(1.0))
"""


def test_a_line_of_a_file_is_found_without_a_look_through_the_modules(graph, tmp_path, monkeypatch):
    """TensorFlow 2 may look there for each frame without a file, such as a notebook's cell."""
    path = str(tmp_path / 'model.py')
    (tmp_path / 'model.py').write_text(SOURCE)
    exec(
        compile("exec(compile(source, path, 'exec'))", CELL, 'exec'),
        {'source': SOURCE, 'path': path},
    )

    def look(*arguments):
        raise AssertionError('asked for the module of %r' % (arguments,))

    monkeypatch.setattr(inspect, 'getmodule', look)
    line = Origins(graph)('double').line
    assert line[:3] == (path, 5, 'double')


@pytest.mark.parametrize('has_source', [True, False])
def test_a_line_of_a_notebooks_cell_is_found_as_its_source_is_kept(graph, monkeypatch, has_source):
    if has_source:  # as IPython does; None tells linecache that there is no file to compare with
        lines = SOURCE.splitlines(True)
        monkeypatch.setitem(linecache.cache, CELL, (len(SOURCE), None, lines, CELL))
    exec(compile(SOURCE, CELL, 'exec'), {})
    line = Origins(graph)('double').line
    if has_source:
        assert str(line) == CELL + ":5, in double: return tf.multiply(x, 2.0, name='double')"
    else:
        assert line.file == __file__


def test_a_script_that_python_knows_by_a_relative_path_is_found_from_elsewhere(
    graph, tmp_path, monkeypatch
):
    """Before Python 3.9 the path is as it was given on the command line."""
    (tmp_path / 'train_there.py').write_text(SOURCE)
    monkeypatch.setattr(source_lines, '_STARTED_IN', str(tmp_path))
    exec(compile(SOURCE, 'train_there.py', 'exec'), {})
    line = Origins(graph)('double').line
    assert line.file == str(tmp_path / 'train_there.py')
    assert line.text == "return tf.multiply(x, 2.0, name='double')"


NAMED = """\
import tensorflow as tf


def mean():
    return tf.reduce_mean([1.0, 2.0])


def both():
    inner = tf.reduce_sum([1.0, 2.0])
    return inner, inner


cost = tf.reduce_mean([1.0, 2.0])  # Mean
model.error = mean()  # Mean_1
tf.reduce_mean([1.0, 2.0])  # Mean_2
tf.reduce_mean([1.0, 2.0]) == 1.0  # Mean_3
print(mean())  # Mean_4
one, other = both()  # Sum
train(loss=tf.reduce_max([1.0, 2.0]))  # Max
rate = 0.1; loss = tf.reduce_prod([1.0, 2.0])  # Prod
least = tf.reduce_min([1.0, 2.0]);  # Min; a comment may have what it likes
"""


def test_what_the_users_code_calls_the_result_of_an_op(graph, tmp_path):
    path = tmp_path / 'names.py'
    path.write_text(NAMED)
    with graph.as_default():
        code = compile(NAMED, str(path), 'exec')
        exec(code, {'model': type('Model', (), {}), 'train': lambda loss: None})
    expected = {
        'Mean': 'cost',
        'Mean_1': 'model.error',
        'Mean_2': None,
        'Mean_4': None,
        'Sum': 'inner',
        'Max': None,
        'Prod': None,
        'Min': 'least',
    }
    assert expected == {op: assigned_name(graph.get_operation_by_name(op)) for op in expected}
