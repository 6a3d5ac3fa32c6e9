"""The diagnosis: it names the op, the line and the reason, and changes nothing."""

import inspect
import linecache

import pytest
import tensorflow as tf

from slimguard.diagnose import diagnose
from tests import zoo

tf1 = tf.compat.v1

HERE = zoo.__file__


def assert_line_at_fault(line, animal):
    """The line has the mark, and is the animal's own, or the one that makes an iterator."""
    assert line.file == HERE
    assert '# at fault' in linecache.getline(HERE, line.number)
    own, start = inspect.getsourcelines(animal.build)
    is_own = start <= line.number < start + len(own)
    assert is_own or (animal.phase == 'input' and 'an iterator' in line.text)


@pytest.mark.parametrize('name', sorted(zoo.ZOO))
def test_the_diagnosis_names_the_op_the_line_and_the_reason(name):
    expected = zoo.ZOO[name]
    failed = zoo.Failed(name)
    found = diagnose(failed.session, failed.capture, failed.values, failed.labels)
    print(found)
    assert expected.says in found.trouble
    assert found.phase == expected.phase
    assert found.op_type in expected.op_types
    assert_line_at_fault(found.line, expected)
    if expected.rows:
        assert found.spots.rows == list(expected.rows)
