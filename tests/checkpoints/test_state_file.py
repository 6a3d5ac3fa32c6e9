"""TensorFlow's state file: how it is read and written, and how a damaged one is mended."""

import os
import random

import pytest
import tensorflow as tf

import slimguard
from slimguard.checkpoints import state_file
from slimguard.checkpoints.repair import repair
from tests.helpers.checkpoints import newest, write
from tests.helpers.models import LogLines

tf1 = tf.compat.v1


@pytest.fixture
def logdir(tmp_path):
    """A logdir with the checkpoints 1 to 3, each in a state file that plain TensorFlow wrote."""
    write(tmp_path)
    return tmp_path


def test_what_is_written_is_relative_and_can_be_moved(logdir):
    paths = [str(logdir / ('model.ckpt-%d' % step)) for step in (2, 1)]
    state_file.write(str(logdir), paths)
    assert str(logdir) not in (logdir / 'checkpoint').read_text()
    assert state_file.read(str(logdir)).paths == paths
    logdir.rename(logdir.parent / 'moved')
    assert newest(logdir.parent / 'moved') == str(logdir.parent / 'moved' / 'model.ckpt-1')


def test_what_tensorflow_would_read_otherwise_is_not_written(logdir):
    before = (logdir / 'checkpoint').read_bytes()
    with pytest.raises(state_file.StateFileError, match='is left as it was'):
        state_file.write(str(logdir), ['model.ckpt-1'])  # a relative path
    assert (logdir / 'checkpoint').read_bytes() == before
    assert not [name for name in os.listdir(str(logdir)) if 'making' in name]


def test_a_checkpoint_in_another_folder_stays_there_and_is_said(logdir, tmp_path_factory):
    other = tmp_path_factory.mktemp('other')
    state_file.write(str(other), [str(logdir / 'model.ckpt-3')])
    repaired = repair(other)
    assert newest(other) == repaired.resumes_from == str(logdir / 'model.ckpt-3')
    assert repaired.said == 'resuming from another folder: ' + repaired.resumes_from


def test_a_damaged_one_is_put_aside_where_there_is_nothing_to_resume_from(tmp_path):
    (tmp_path / 'checkpoint').write_text('model_checkpoint_path: ""')
    with pytest.raises(ValueError):  # a restart would end with this error
        tf1.train.latest_checkpoint(str(tmp_path))
    repaired = repair(tmp_path)
    assert repaired.is_lost
    assert '%s cannot be read: ' % (tmp_path / 'checkpoint') in repaired.said
    assert newest(tmp_path) is None
    assert (tmp_path / 'checkpoint.bad').exists()


def mutate(content, choose):
    """`content` with a few bytes changed, removed, doubled, or replaced by special characters."""
    content = bytearray(content)
    for _ in range(choose.randint(1, 4)):
        start = choose.randrange(len(content) + 1)
        end = min(len(content), start + choose.choice([0, 1, 5, 50]))
        content[start:end] = choose.choice(
            [
                bytes([choose.randrange(256)]),
                b'',
                bytes(content[start:end]) * 2,
                b'../',
                b'/',
                b'"',
                b'\n',
                b'{' * 2000,
                b'model_checkpoint_path: "model.ckpt-1"\n',
                b'\\377\\000',
                b'9' * 400,
                b'.spare',
                b'?',
                b'[1]',
            ]
        )
    return bytes(content)


def test_whatever_is_in_it_the_newest_good_checkpoint_is_resumed_from(logdir):
    choose = random.Random(300)
    path = logdir / 'checkpoint'
    content = path.read_bytes().replace(b'%s/' % os.fsencode(str(logdir)), b'')
    for _ in range(300):
        mutant = mutate(content, choose)
        path.write_bytes(mutant)
        with LogLines():
            found = slimguard.latest_finite_checkpoint(logdir)
            repaired = repair(logdir)
        assert found == repaired.resumes_from == newest(logdir), mutant
        assert os.path.dirname(found) == str(logdir), mutant
        assert repair(logdir).said is None, mutant
