"""`slimguard.read_incidents`: the record of a logdir in Python."""

import os
import warnings

import pytest

import slimguard
from slimguard.incidents import record_file
from tests.helpers.children import python

# In a process of its own, which may import no TensorFlow.
READ = """\
import sys, slimguard
for incident in slimguard.read_incidents(sys.argv[1]):
    print(incident.step, incident.reason)
assert 'tensorflow' not in sys.modules
"""


def incident(step):
    return slimguard.Incident(
        step, float('nan'), 'not finite: loss', ('loss',), 'hook', 1000.0, action='skip'
    )


def record(logdir, *steps):
    file = record_file.IncidentFile(str(logdir))
    file.make()
    for step in steps:
        file.append(incident(step))
    file.close()


def test_incidents_are_what_they_were(tmp_path):
    record(tmp_path, 3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        read = slimguard.read_incidents(tmp_path)
    assert [each.step for each in read] == [3, 5]
    assert read[0].to_dict() == incident(3).to_dict()
    with pytest.raises(AttributeError):  # it never changes
        read[0].step = 4


def test_it_imports_no_tensorflow(tmp_path):
    record(tmp_path, 3)
    done = python('-c', READ, tmp_path)
    assert (done.returncode, done.stdout) == (0, '3 not finite: loss\n'), done.stderr


def test_an_empty_record_is_an_empty_list(tmp_path):
    record(tmp_path)
    assert slimguard.read_incidents(tmp_path) == []


def test_where_there_is_none_the_error_says_why_that_may_be(tmp_path):
    (tmp_path / 'checkpoint').write_text('')
    with pytest.raises(FileNotFoundError, match='no record of incidents in .*logdir='):
        slimguard.read_incidents(tmp_path)
    with pytest.raises(FileNotFoundError, match='there is no directory .*nowhere'):
        slimguard.read_incidents(tmp_path / 'nowhere')


def test_a_damaged_record_is_an_error_and_a_damaged_line_a_warning(tmp_path):
    record(tmp_path, 3)
    with open(record_file.path_in(str(tmp_path)), 'a') as file:
        file.write('{"step": 4')
    with pytest.warns(RuntimeWarning, match='1 line of the record could not be read'):
        assert len(slimguard.read_incidents(tmp_path)) == 1
    with open(record_file.path_in(str(tmp_path)), 'w') as file:
        file.write('rubbish')
    with pytest.raises(ValueError, match='is no record of slimguard, or a damaged one'):
        slimguard.read_incidents(tmp_path)


def test_what_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / 'slimguard').mkdir()
    os.mkfifo(record_file.path_in(str(tmp_path)))
    with pytest.raises(OSError, match='no regular file'):
        slimguard.read_incidents(tmp_path)
    with pytest.raises(TypeError, match='logdir must be a path'):
        slimguard.read_incidents(3)
