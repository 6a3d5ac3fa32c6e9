"""Logdirs as people type them, move them and copy them: a training saves, goes back and resumes."""

import os
import pathlib
import shutil

import pytest
import tensorflow as tf

import slimguard
from slimguard.__main__ import main
from slimguard.checkpoints.repair import repair
from slimguard.checkpoints.state_file import StateFileError
from tests.helpers.checkpoints import newest, write
from tests.helpers.models import Linear, checkpoint_at, records_in

tf1 = tf.compat.v1


def linked(name):
    os.mkdir('behind')
    os.symlink('behind', name)
    return name


GIVEN = {
    'absolute': lambda: os.path.abspath('logs'),
    'relative': lambda: 'logs',
    'with a dot': lambda: './logs',
    'with two dots': lambda: 'a/../logs',
    'with a slash at the end': lambda: 'logs/',
    'a link': lambda: linked('logs'),
    'a Path': lambda: pathlib.Path('logs'),
    'bytes': lambda: b'logs',
    'with letters that mean something elsewhere': lambda: 'my l\u00f6gs 100% #1 {a} "b"',
    'in folders that are not there yet': lambda: os.path.join('not', 'there', 'yet'),
    'a file URL': lambda: 'file://' + os.path.abspath('logs'),
}


@pytest.fixture(params=GIVEN)
def logdir(request, tmp_path, monkeypatch):
    """A logdir as it is given."""
    monkeypatch.chdir(tmp_path)
    return GIVEN[request.param]()


class ChangesDirectory(tf1.train.SessionRunHook):
    """A user's code that goes elsewhere once the training runs."""

    def after_create_session(self, session, coord):
        os.makedirs('elsewhere')
        os.chdir('elsewhere')


def train(logdir, bad=(), number_of_steps=6, **kwargs):
    """Trains in a graph of its own. Returns the number of batches that were drawn."""
    with tf.Graph().as_default():
        model = Linear(bad=bad)
        train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
        slimguard.train(
            train_op,
            logdir,
            number_of_steps=number_of_steps,
            log_every_n_steps=0,
            save_summaries_secs=0,
            save_interval_secs=0,
            **kwargs,
        )
        return model.batches.drawn


def test_a_training_saves_goes_back_and_resumes_wherever_its_process_goes(logdir, tmp_path):
    there = os.path.abspath(os.fsdecode(logdir).replace('file://', ''))
    with pytest.raises(slimguard.NanLossError):
        train(logdir, bad=(2,), hooks=[ChangesDirectory()])
    assert checkpoint_at(there) == (2, [])
    os.chdir(str(tmp_path))
    os.rmdir('elsewhere')
    assert train(logdir, bad=(1,), on_nan='rollback', hooks=[ChangesDirectory()]) == 1 + 1 + 4
    assert checkpoint_at(there) == (6, [])
    assert newest(there) == os.path.join(there, 'model.ckpt-6')
    records = records_in(there)
    assert [record['action'] for record in records] == ['raise', 'rollback']
    assert records[1]['restored'] == os.path.join(there, 'model.ckpt-2')
    assert all(os.path.isdir(record['bundle']) for record in records)
    assert os.listdir(str(tmp_path / 'elsewhere')) == []


def test_a_logdir_that_tensorflow_could_not_resume_from_is_refused_before_anything_is_made(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"logdir '.*run\[1\]' holds '\['.* wild card"):
        train('run[1]')
    with pytest.raises(ValueError, match='wild card'):
        slimguard.watch(tf1.Session(), logdir='run*')
    assert os.listdir('.') == []


@pytest.mark.parametrize('logdir', ['file', 'file/logs'])
@pytest.mark.parametrize(
    'take',
    [
        lambda logdir: slimguard.NanLossHook(tf.constant(1.0), logdir=logdir),
        lambda logdir: slimguard.watch(tf1.Session(), logdir=logdir),
        lambda logdir: slimguard.instrument(logdir=logdir),
        train,
    ],
    ids=['NanLossHook', 'watch', 'instrument', 'train'],
)
def test_a_logdir_that_is_no_directory_is_refused_where_it_is_given(
    take, logdir, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').write_text('')
    path = str(tmp_path / logdir)
    with pytest.raises(ValueError) as caught:
        take(logdir)
    told = 'logdir %r cannot be used: %r is no directory'
    assert str(caught.value) == told % (path, str(tmp_path / 'file'))


def test_plain_tensorflow_cannot_resume_from_such_a_logdir_either(tmp_path):
    """The reason to refuse it. Once this fails, there is none any more."""
    write(tmp_path / 'run[1]')
    assert newest(tmp_path / 'run[1]') is None


@pytest.mark.parametrize('moved', ['moved', 'copied', 'copied, and the original truncated'])
@pytest.mark.parametrize('is_relative', [False, True])
def test_a_directory_that_was_moved_or_copied_is_the_one_that_is_meant(
    tmp_path, moved, is_relative
):
    old, new = tmp_path / 'old', tmp_path / 'new'
    write(old, save_relative_paths=is_relative)
    if moved == 'moved':
        old.rename(new)
    else:
        shutil.copytree(str(old), str(new), copy_function=shutil.copyfile)
    if moved.endswith('truncated'):
        for file in old.glob('model.ckpt-*'):
            os.truncate(str(file), 1)
    here = str(new / 'model.ckpt-3')
    assert slimguard.latest_finite_checkpoint(new) == here
    repaired = repair(new)
    assert repaired.resumes_from == newest(new) == here
    if is_relative:
        assert repaired.said is None
    else:
        why = '(the state file named %s, of another folder)' % (old / 'model.ckpt-3')
        assert repaired.said == 'resuming from %s %s' % (here, why)
    state = tf1.train.get_checkpoint_state(str(new))
    assert {os.path.dirname(path) for path in state.all_model_checkpoint_paths} == {str(new)}
    assert repair(new).said is None


def test_a_training_goes_on_in_the_copy_and_leaves_the_original_alone(tmp_path):
    old, new = tmp_path / 'old', tmp_path / 'new'
    train(old)
    written = (old / 'checkpoint').read_text()
    (old / 'checkpoint').write_text(written.replace('"model', '"%s/model' % old))  # as stock does
    assert newest(old) == str(old / 'model.ckpt-6')
    shutil.copytree(str(old), str(new), copy_function=shutil.copyfile)
    before = sorted(os.listdir(str(old)))
    assert train(new, number_of_steps=12) == 6
    assert checkpoint_at(new) == (12, [])
    assert sorted(os.listdir(str(old))) == before


BROKEN = {
    'one folder too high': b'model_checkpoint_path: "../model.ckpt-3"\n'
    b'all_model_checkpoint_paths: "../model.ckpt-3"\n',
    'a spare that is gone': b'model_checkpoint_path: "model.ckpt.spare-3"\n'
    b'all_model_checkpoint_paths: "model.ckpt-2"\n'
    b'all_model_checkpoint_paths: "model.ckpt.spare-3"\n',
    'one folder too deep': b'model_checkpoint_path: "logs/model.ckpt-3"\n',
    'no name': b'model_checkpoint_path: ""\n',
    'rubbish': b'\0\xff rubbish {',
}


@pytest.mark.parametrize('given', ['logs', './logs', 'a/../logs'])
@pytest.mark.parametrize('broken', BROKEN.values(), ids=BROKEN)
def test_a_state_file_that_is_broken_is_recognised_and_mended(tmp_path, monkeypatch, given, broken):
    monkeypatch.chdir(tmp_path)
    train(given, number_of_steps=3)
    pathlib.Path('logs', 'checkpoint').write_bytes(broken)
    repaired = repair(given)
    assert repaired.resumes_from == str(tmp_path / 'logs' / 'model.ckpt-3')
    assert repaired.said.startswith('resuming from %s (' % repaired.resumes_from)
    assert newest('logs') == os.path.join('logs', 'model.ckpt-3')
    assert repair(given).said is None
    pathlib.Path('logs', 'checkpoint').write_bytes(broken)
    assert train(given, number_of_steps=5) == 2


def test_a_state_file_that_is_a_fifo_is_not_waited_for(tmp_path):
    write(tmp_path)
    os.remove(str(tmp_path / 'checkpoint'))
    os.mkfifo(str(tmp_path / 'checkpoint'))
    assert slimguard.latest_finite_checkpoint(tmp_path) == str(tmp_path / 'model.ckpt-3')
    with pytest.raises(StateFileError, match='checkpoint is no regular file'):
        train(tmp_path)


def test_a_file_name_that_is_no_utf8_is_ignored(tmp_path):
    write(tmp_path)
    open(os.path.join(os.fsencode(str(tmp_path)), b'caf\xe9-7.index'), 'w').close()
    assert repair(tmp_path).resumes_from == str(tmp_path / 'model.ckpt-3')
    train(tmp_path / 'other')
    open(os.path.join(os.fsencode(str(tmp_path / 'other')), b'\xff'), 'w').close()
    assert train(tmp_path / 'other', number_of_steps=7) == 1


def test_what_somebody_has_planted_for_the_new_state_file_is_not_followed(tmp_path):
    write(tmp_path, values=(1.0, float('nan')))
    (tmp_path / 'precious').write_text('precious')
    for name in ('checkpoint.new', 'checkpoint.tmp', 'checkpoint.making-0'):
        os.symlink('precious', str(tmp_path / name))
    assert repair(tmp_path).resumes_from == newest(tmp_path) == str(tmp_path / 'model.ckpt-1')
    assert (tmp_path / 'precious').read_text() == 'precious'


class TestAnotherFileSystem:
    """``ram://`` stands in for gs:// and hdfs://: no links, and nothing that `os` could see."""

    @pytest.fixture(autouse=True)
    def root(self, request):
        if not hasattr(tf.io.gfile, 'get_registered_schemes') or (
            'ram' not in tf.io.gfile.get_registered_schemes()
        ):
            pytest.skip('this TensorFlow has no ram://')
        return 'ram://%s' % abs(hash(request.node.nodeid))

    def test_a_training_saves_goes_back_and_resumes(self, root, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(slimguard.NanLossError):
            train(root, bad=(2,), capture=False)
        assert newest(root) == root + '/model.ckpt-2'
        assert train(root + '/', bad=(1,), on_nan='rollback', capture=False) == 1 + 1 + 4
        assert newest(root) == root + '/model.ckpt-6'
        assert [r['action'] for r in records_in(root)] == ['raise', 'rollback']
        assert os.listdir('.') == []

    def test_a_poisoned_one_is_passed_over_and_repaired(self, root):
        write(root, values=(1.0, float('nan')))
        assert newest(root) == root + '/model.ckpt-2'
        assert slimguard.latest_finite_checkpoint(root) == root + '/model.ckpt-1'
        said = 'resuming from %s/model.ckpt-1 (model.ckpt-2 is not finite: w)' % root
        assert repair(root).said == said
        assert newest(root) == root + '/model.ckpt-1'

    def test_a_step_that_is_saved_again_has_a_spare_meanwhile(self, root):
        weights = tf1.get_variable('w', [])
        saver = slimguard.FiniteSaver()
        with tf1.Session() as session:
            session.run(weights.assign(1.0))
            saver.save(session, root + '/m', 1)
            session.run(weights.assign(2.0))
            saver.save(session, root + '/m', 1)
            session.run(weights.assign(float('nan')))
            assert saver.save(session, root + '/m', 1) is None
            assert [incident.tensors for incident in saver.refused] == [('w',)]
            saver.restore(session, newest(root))
            assert session.run(weights) == 2.0
        assert sorted(tf.io.gfile.listdir(root)) == [
            'checkpoint',
            'm-1.data-00000-of-00001',
            'm-1.index',
            'm-1.meta',
            'slimguard',
        ]


@pytest.mark.parametrize('part', ['.index', '.data-00000-of-00001'])
class TestACheckpointThatCannotBeRead:
    """It may be good: to pass over it, or to begin anew, would lose what it holds."""

    @pytest.fixture
    def logdir(self, tmp_path, part):
        train(tmp_path / 'logs')
        name = str(tmp_path / 'logs' / 'model.ckpt-6') + part
        os.rename(name, name + '.kept')
        os.symlink('/proc/self/mem', name)  # a regular file; reading it is an error of its device
        yield tmp_path / 'logs'
        os.remove(name)
        os.rename(name + '.kept', name)
        assert train(tmp_path / 'logs', number_of_steps=8) == 2  # nothing was lost

    def test_ends_the_training_before_it_begins_and_nothing_is_written(self, logdir, part):
        before = {p.name: p.lstat().st_mtime_ns for p in logdir.iterdir()}
        for act in (train, repair, slimguard.latest_finite_checkpoint):
            with pytest.raises(OSError, match='model.ckpt-6.* cannot be read: '):
                act(logdir)
        assert {p.name: p.lstat().st_mtime_ns for p in logdir.iterdir()} == before

    def test_is_said_by_the_command(self, logdir, part, capsys):
        for command in (['checkpoints'], ['checkpoints', '--repair']):
            with pytest.raises(SystemExit) as left:
                main(command + [str(logdir)])
            assert left.value.code == 2
            assert 'cannot be read: ' in capsys.readouterr().err


def test_an_index_that_is_a_fifo_is_not_waited_for(tmp_path):
    write(tmp_path, values=(1.0, 2.0))
    os.remove(str(tmp_path / 'model.ckpt-2.index'))
    os.mkfifo(str(tmp_path / 'model.ckpt-2.index'))
    assert repair(tmp_path).resumes_from == str(tmp_path / 'model.ckpt-1')
