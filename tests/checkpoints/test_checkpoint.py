"""Checkpoints on disk: which are whole and finite, and what a restart resumes from."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.__main__ import main
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.repair import repair
from tests.helpers.checkpoints import truncate, write

tf1 = tf.compat.v1

V1 = tf1.train.SaverDef.V1


def scribble(path):
    """Changes one byte in the middle, which only a checksum shows."""
    with open(path, 'r+b') as file:
        file.seek(1)
        byte = file.read(1)
        file.seek(1)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize('settings', [{}, {'sharded': True}, {'write_version': V1}])
@pytest.mark.parametrize('dtype', [tf.float16, tf.float32, tf.bfloat16])
@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_the_newest_finite_one_is_found_in_every_format(folder, settings, dtype, bad):
    if dtype != tf.float32 and 'write_version' in settings:
        return  # in V1, TensorFlow cannot write one of these dtypes, nor read the other
    paths = write(folder, [1.0, 2.0, bad, bad], dtype, **settings)
    assert os.path.abspath(tf1.train.latest_checkpoint(str(folder))) == paths[-1]
    assert slimguard.latest_finite_checkpoint(str(folder)) == paths[1]
    assert checkpoint_reader.read(paths[-1]) == (4, None, ('w',))


@pytest.mark.parametrize(
    'damage, suffix',
    [
        (truncate, '.index'),
        (truncate, '.data-00000-of-00001'),
        (scribble, '.data-00000-of-00001'),
        (os.remove, '.data-00000-of-00001'),
        (os.remove, '.index'),
    ],
)
def test_a_checkpoint_that_is_torn_is_passed_over(folder, damage, suffix):
    paths = write(folder, [1.0, 2.0, 3.0])
    damage(paths[-1] + suffix)
    assert slimguard.latest_finite_checkpoint(str(folder)) == paths[1]


def test_a_torn_checkpoint_of_the_old_format_is_passed_over(folder):
    paths = write(folder, [1.0, 2.0, 3.0], write_version=V1)
    truncate(paths[-1])
    assert slimguard.latest_finite_checkpoint(str(folder)) == paths[1]


@pytest.mark.parametrize('state', [None, '', 'rubbish: 3', 'model_checkpoint_path: "gone-9"'])
def test_the_state_file_is_not_needed(folder, state):
    paths = write(folder, [1.0, 2.0])
    os.remove(str(folder / 'checkpoint'))
    if state is not None:
        (folder / 'checkpoint').write_text(state)
    assert slimguard.latest_finite_checkpoint(str(folder)) == paths[-1]


def test_one_that_the_state_file_does_not_name_yet_is_found(folder):
    paths = write(folder, [1.0, 2.0])
    before = (folder / 'checkpoint').read_text()
    paths += write(folder / 'next', [3.0, 4.0, 5.0])[-1:]
    for suffix in ('.index', '.data-00000-of-00001'):
        shutil.copy(paths[-1] + suffix, str(folder))
    assert (folder / 'checkpoint').read_text() == before
    found = slimguard.latest_finite_checkpoint(str(folder))
    assert os.path.basename(found) == 'model.ckpt-3'


def test_after_a_rollback_the_newest_is_not_the_one_with_the_highest_step(folder):
    with tf1.Session() as session:
        tf1.get_variable('w', [2])
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver()
        for step in (100, 200, 101):
            newest = saver.save(session, str(folder / 'model.ckpt'), step)
    for name in os.listdir(str(folder)):  # as in a copied directory
        os.utime(str(folder / name), (1, 1))
    assert slimguard.latest_finite_checkpoint(str(folder)) == os.path.abspath(newest)


def test_there_may_be_none(folder):
    assert slimguard.latest_finite_checkpoint(str(folder)) is None
    assert slimguard.latest_finite_checkpoint(str(folder / 'nowhere')) is None
    write(folder, [np.nan])
    assert slimguard.latest_finite_checkpoint(str(folder)) is None


class TestRepair:
    def files(self, folder):
        return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != 'checkpoint'}

    def test_the_state_file_names_the_newest_good_one_and_nothing_else_changes(self, folder):
        paths = write(folder, [1.0, np.nan, 2.0, np.nan])
        before = self.files(folder)
        assert repair(folder).said.startswith('resuming from ' + paths[2])
        assert tf1.train.latest_checkpoint(os.path.abspath(str(folder))) == paths[2]
        state = tf1.train.get_checkpoint_state(os.path.abspath(str(folder)))
        assert list(state.all_model_checkpoint_paths) == [paths[0], paths[2]]
        assert self.files(folder) == before
        assert repair(folder).said is None

    def test_a_logdir_that_is_well_is_left_alone(self, folder):
        write(folder, [1.0, 2.0])
        before = (folder / 'checkpoint').read_text()
        assert repair(folder).said is None
        assert (folder / 'checkpoint').read_text() == before
        assert repair(folder / 'new').said is None

    def test_paths_that_were_relative_stay_so(self, folder):
        write(folder / 'old', [1.0, np.nan], save_relative_paths=True)
        (folder / 'old').rename(folder / 'moved')
        repair(folder / 'moved')
        (folder / 'moved').rename(folder / 'again')
        good = str(folder / 'again' / 'model.ckpt-1')
        assert tf1.train.latest_checkpoint(str(folder / 'again')) == good

    def test_with_none_that_is_good_there_is_nothing_to_resume_from(self, folder):
        write(folder, [np.nan])
        assert 'model.ckpt-1 is not finite: w' in repair(folder).said
        assert tf1.train.latest_checkpoint(str(folder)) is None
        assert (folder / 'checkpoint.bad').exists()
        assert (folder / 'model.ckpt-1.index').exists()


class TestCommand:
    def test_lists_what_there_is_and_says_what_a_restart_meets(self, folder, capsys):
        paths = write(folder, [1.0, np.nan, 2.0])
        truncate(paths[-1] + '.data-00000-of-00001')
        with pytest.raises(SystemExit) as left:
            main(['checkpoints', str(folder)])
        assert left.value.code == 1
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines[1:4]] == [
            ['model.ckpt-%d' % step, str(step)] for step in (1, 2, 3)
        ]
        assert lines[1].endswith('  finite')
        assert lines[2].endswith('  not finite: w')
        assert '  truncated: ' in lines[3]
        assert lines[4] == 'a guarded restart resumes from %s, which is finite' % paths[0]
        assert lines[5].startswith(
            'plain TensorFlow goes by its state file: it names %s, which is truncated: ' % paths[-1]
        )

    def test_says_that_there_is_nothing(self, folder, capsys):
        (folder / 'graph.pbtxt').write_text('')
        main(['checkpoints', str(folder)])
        assert capsys.readouterr().out == 'no checkpoints in %s\n' % os.path.abspath(str(folder))


def test_a_directory_may_have_any_name(folder):
    folder = folder / 'run [1] of *'
    (path,) = write(folder, [1.0])
    (found,) = checkpoint_reader.checkpoints_in(str(folder))
    assert found.path == path
    assert found.size == sum(f.stat().st_size for f in folder.glob('model.ckpt-1.[di]*'))
