"""Logdirs as people type, move, copy and share them, and the one that a hook finds by itself."""

import logging
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
import tensorflow as tf

import slimguard
from slimguard.__main__ import main
from slimguard.checkpoints.repair import repair
from slimguard.training.training import occupied
from tests.helpers.checkpoints import newest, write
from tests.helpers.children import ROOT, environment
from tests.helpers.models import Linear, LogLines, checkpoint_at, records_in, train_quietly
from tests.helpers.template import Forked

fcntl = pytest.importorskip('fcntl')
tf1 = tf.compat.v1


def linked(name):
    os.mkdir('behind')
    os.symlink('behind', name)
    return name


GIVEN = {
    'a link': lambda: linked('logs'),
    'bytes': lambda: b'logs/',
    'with letters that mean something elsewhere': lambda: 'my l\u00f6gs 100% #1 {a} "b"',
    'with two dots, in folders that are not there yet': lambda: os.path.join(
        'a', '..', 'there', 'yet'
    ),
    'a file URL': lambda: 'file://' + os.path.abspath('logs'),
}


@pytest.fixture(params=GIVEN)
def logdir(request, tmp_path, monkeypatch):
    """A logdir in each form of `GIVEN`."""
    monkeypatch.chdir(tmp_path)
    return GIVEN[request.param]()


class ChangesDirectory(tf1.train.SessionRunHook):
    """A user's hook that changes the working directory once the training runs."""

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


@pytest.mark.full
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
    # The reason to refuse such a name: TensorFlow finds no checkpoint there. If this assertion
    # fails, it does, and slimguard need not refuse the name any more.
    write(tmp_path / 'run[1]')
    assert newest(tmp_path / 'run[1]') is None


def test_a_logdir_that_is_no_directory_is_refused_where_it_is_given(tmp_path):
    (tmp_path / 'file').write_text('')
    for take in (
        lambda logdir: slimguard.NanLossHook(tf.constant(1.0), logdir=logdir),
        lambda logdir: slimguard.watch(tf1.Session(), logdir=logdir),
        lambda logdir: slimguard.instrument(logdir=logdir),
        train,
    ):
        for path in (str(tmp_path / 'file'), str(tmp_path / 'file' / 'logs')):
            with pytest.raises(ValueError) as caught:
                take(path)
            told = 'logdir %r cannot be used: %r is no directory'
            assert str(caught.value) == told % (path, str(tmp_path / 'file'))


def test_a_logdir_to_which_nothing_can_be_written_is_refused_before_the_training():
    """Not even a root may write there."""
    Linear()
    watched = lambda logdir: slimguard.watch(tf1.Session(), logdir=logdir)  # noqa: E731
    for take in (train, watched):
        with pytest.raises(ValueError) as caught:
            take('/proc/not there/yet')
        said = "logdir '/proc/not there/yet' cannot be used: this process cannot write to it ("
        assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ('moved', 'is_relative'),
    [('copied, and the original truncated', False), ('moved', False), ('copied', True)],
)
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


@pytest.mark.full
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
    'no name': b'model_checkpoint_path: ""\n',
    'rubbish': b'\0\xff rubbish {',
}


@pytest.mark.full
@pytest.mark.parametrize('broken', BROKEN.values(), ids=BROKEN)
def test_a_state_file_that_is_broken_is_recognised_and_mended(tmp_path, monkeypatch, broken):
    monkeypatch.chdir(tmp_path)
    train('a/../logs', number_of_steps=3)
    pathlib.Path('logs', 'checkpoint').write_bytes(broken)
    repaired = repair('a/../logs')
    assert repaired.resumes_from == str(tmp_path / 'logs' / 'model.ckpt-3')
    assert repaired.said.startswith('resuming from %s (' % repaired.resumes_from)
    assert newest('logs') == os.path.join('logs', 'model.ckpt-3')
    assert repair('a/../logs').said is None
    pathlib.Path('logs', 'checkpoint').write_bytes(broken)
    assert train('./logs', number_of_steps=5) == 2


def test_fifos_are_not_waited_for(tmp_path):
    write(tmp_path, values=(1.0, 2.0))
    os.remove(str(tmp_path / 'model.ckpt-2.index'))
    os.mkfifo(str(tmp_path / 'model.ckpt-2.index'))
    assert repair(tmp_path).resumes_from == str(tmp_path / 'model.ckpt-1')
    os.remove(str(tmp_path / 'checkpoint'))
    os.mkfifo(str(tmp_path / 'checkpoint'))
    assert slimguard.latest_finite_checkpoint(tmp_path) == str(tmp_path / 'model.ckpt-1')
    with pytest.raises(OSError, match='checkpoint is no regular file'):
        train(tmp_path)


@pytest.mark.full
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

    @pytest.mark.full
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


@pytest.mark.full
@pytest.mark.parametrize('part', ['.index', '.data-00000-of-00001'])
def test_a_checkpoint_that_cannot_be_read_ends_the_training_before_it_begins(
    tmp_path, part, capsys
):
    """The checkpoint may be good: a training that starts without it would lose its steps."""
    logdir = tmp_path / 'logs'
    train(logdir)
    name = str(logdir / 'model.ckpt-6') + part
    os.rename(name, name + '.kept')
    os.symlink('/proc/self/mem', name)  # a regular file that fails to be read, as on a bad disk
    before = {p.name: p.lstat().st_mtime_ns for p in logdir.iterdir()}
    for act in (train, repair, slimguard.latest_finite_checkpoint):
        with pytest.raises(OSError, match='model.ckpt-6.* cannot be read: '):
            act(logdir)
    for command in (['checkpoints'], ['checkpoints', '--repair']):
        with pytest.raises(SystemExit) as left:
            main(command + [str(logdir)])
        assert left.value.code == 2
        assert 'cannot be read: ' in capsys.readouterr().err
    assert {p.name: p.lstat().st_mtime_ns for p in logdir.iterdir()} == before
    os.remove(name)
    os.rename(name + '.kept', name)
    assert train(logdir, number_of_steps=8) == 2  # nothing was lost


# A NanLossHook without a logdir finds the directory that its session saves to.


def build(on_nan='skip', **kwargs):
    model = Linear(bad=(3,))
    train_op = slimguard.guard(model.minimize(), loss=model.loss)
    return train_op, slimguard.NanLossHook(model.loss, on_nan=on_nan, capture=False, **kwargs)


def run(session, train_op, steps=6):
    for _ in range(steps):
        session.run(train_op)


def recorded(logdir):
    records = records_in(logdir)
    return [(record['step'], record['action']) for record in records]


def checkpoint_saver(logdir, **kwargs):
    return tf1.train.CheckpointSaverHook(str(logdir), save_steps=1, **kwargs)


def in_monitored_training_session(hook, train_op, logdir):
    with tf1.train.MonitoredTrainingSession(checkpoint_dir=str(logdir), hooks=[hook]) as session:
        run(session, train_op)


def in_monitored_session(hook, train_op, logdir):
    creator = tf1.train.ChiefSessionCreator(checkpoint_dir=str(logdir))
    # The hook finds the saver even if the saver's `begin` is called after its own.
    hooks = [hook, checkpoint_saver(logdir)]
    with tf1.train.MonitoredSession(creator, hooks) as session:
        run(session, train_op)


def in_singular_monitored_session(hook, train_op, logdir):
    scaffold = tf1.train.Scaffold()
    hooks = (checkpoint_saver(logdir, scaffold=scaffold), hook)
    with tf1.train.SingularMonitoredSession(hooks=hooks, scaffold=scaffold) as session:
        run(session, train_op)


def in_a_watched_session(hook, train_op, logdir):
    saver = checkpoint_saver(logdir, saver=tf1.train.Saver())
    plain = tf1.Session()
    plain.run(tf1.global_variables_initializer())  # the saver's hook saves at once
    with slimguard.watch(plain, hooks=[saver, hook]) as session:
        run(session, train_op)


class Warnings(LogLines):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            LogLines.emit(self, record)


@pytest.mark.parametrize(
    ('loop', 'on_nan'),
    [
        (in_monitored_training_session, 'rollback'),
        (in_monitored_session, 'skip'),
        (in_singular_monitored_session, lambda incident: 'rollback'),
        (in_a_watched_session, 'skip'),
    ],
)
def test_a_hook_without_one_finds_where_its_session_saves_and_one_line_says_so(
    loop, on_nan, tmp_path
):
    train_op, hook = build(on_nan)
    with LogLines() as lines, Warnings() as warnings:
        loop(hook, train_op, tmp_path)
    action = 'skip' if on_nan == 'skip' else 'rollback'
    assert recorded(tmp_path) == [(3, action)]
    if action == 'rollback':
        assert hook.incidents[0].restored.startswith(str(tmp_path))
        assert not checkpoint_at(tmp_path)[1]
    said = [line for line in lines if 'has no logdir' in line]
    assert said == [
        'NanLossHook has no logdir; incidents go to %s, where this session keeps its '
        'checkpoints.' % tmp_path
    ]
    # No warning: the README's own snippet has no logdir either.
    assert not any('has no logdir' in line for line in warnings)


def test_a_worker_that_saves_nothing_finds_the_chiefs_directory(tmp_path):
    server = tf1.train.Server.create_local_server()
    train_op, hook = build()
    init = tf1.global_variables_initializer()
    tf1.report_uninitialized_variables()
    with tf1.Session(server.target) as session:
        session.run(init)
    with tf1.train.MonitoredTrainingSession(
        server.target, is_chief=False, checkpoint_dir=str(tmp_path), hooks=[hook]
    ) as session:
        run(session, train_op)
    assert recorded(tmp_path) == [(3, 'skip')]


@pytest.mark.full
def test_each_session_is_asked_for_its_own(tmp_path):
    train_op, hook = build()
    with tf1.train.SingularMonitoredSession(hooks=[checkpoint_saver(tmp_path), hook]) as session:
        run(session, train_op)
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
        run(session, train_op)
    assert hook.logdir is None and len(hook.incidents) == 1
    assert recorded(tmp_path) == [(3, 'skip')]


def test_anothers_hooks_are_not_taken_for_its_own(tmp_path):
    hooks = [checkpoint_saver(tmp_path)]  # of another session, made in the same function
    train_op, hook = build()
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
        run(session, train_op)
    assert hooks and not os.listdir(str(tmp_path))


@pytest.mark.full
def test_a_relative_directory_is_where_it_was_when_the_session_began(tmp_path, monkeypatch):
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path)
    train_op, hook = build()
    with tf1.train.SingularMonitoredSession(
        hooks=[hook, checkpoint_saver('log', saver=tf1.train.Saver())]
    ) as session:
        run(session, train_op, 2)
        monkeypatch.chdir(tmp_path / 'elsewhere')
        os.mkdir('log')
        run(session, train_op, 3)
    assert not os.path.exists(os.path.join('log', 'slimguard'))
    assert recorded(tmp_path / 'log') == [(3, 'skip')]


class TestTwoDirectories:
    """A logdir that is not where the session saves."""

    def said(self, tmp_path, logdir, on_nan='rollback'):
        train_op, hook = build(on_nan, logdir=logdir)
        with LogLines() as lines:
            in_monitored_training_session(hook, train_op, tmp_path)
        assert not [line for line in lines if 'has no logdir' in line]
        return [line for line in lines if 'but this session keeps' in line], hook

    def test_one_line_says_which_is_used_for_what(self, tmp_path):
        ours, theirs = tmp_path / 'ours', tmp_path / 'theirs'
        (line,), hook = self.said(theirs, ours)
        assert line == (
            'NanLossHook records incidents in %s, its logdir, but this session keeps '
            'its checkpoints in %s. A rollback restores what is in %s: not what this session '
            'saves, but an older state, or that of another training. To have all in one place, '
            'pass logdir=%r, or none.' % (ours, theirs, ours, str(theirs))
        )
        (incident,) = hook.incidents
        assert incident.restored == str(ours / 'model.ckpt-0')
        assert recorded(ours) == [(3, 'rollback')] and not (theirs / 'slimguard').exists()

    @pytest.mark.full
    def test_without_a_rollback_only_the_record_is_elsewhere(self, tmp_path):
        (line,), _ = self.said(tmp_path / 'theirs', tmp_path / 'ours', 'skip')
        assert 'records incidents in %s,' % (tmp_path / 'ours') in line
        assert 'A rollback restores' not in line

    @pytest.mark.parametrize('spelling', ['link', './logs/../logs/', b'logs'])
    def test_one_directory_has_many_spellings(self, tmp_path, monkeypatch, spelling):
        monkeypatch.chdir(tmp_path)
        if spelling == 'link':
            os.mkdir('logs')
            os.symlink('logs', 'link')
        lines, hook = self.said('logs', spelling)
        assert lines == [] and hook.incidents[0].restored is not None

    def test_a_session_that_is_watched_with_a_hook_that_saves_is_told_of_both(self, tmp_path):
        ours, theirs = tmp_path / 'ours', tmp_path / 'theirs'
        train_op, _ = build()
        saver = checkpoint_saver(theirs, saver=tf1.train.Saver())
        plain = tf1.Session()
        plain.run(tf1.global_variables_initializer())
        with LogLines() as lines:
            with slimguard.watch(plain, hooks=[saver], on_nan='skip', logdir=ours) as session:
                run(session, train_op)
        (line,) = [line for line in lines if 'but this session keeps' in line]
        assert str(ours) in line and str(theirs) in line

    @pytest.mark.full
    def test_a_second_saver_may_save_to_it(self, tmp_path):
        train_op, hook = build('rollback', logdir=tmp_path / 'ours')
        hooks = [hook, checkpoint_saver(tmp_path / 'ours')]
        theirs = str(tmp_path / 'theirs')
        with LogLines() as lines:
            with tf1.train.MonitoredTrainingSession(checkpoint_dir=theirs, hooks=hooks) as session:
                run(session, train_op)
        assert not [line for line in lines if 'but this session keeps' in line]

    @pytest.mark.full
    def test_a_training_of_slimguards_saves_to_its_own(self, tmp_path):
        model = Linear(bad=(3,))
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        hooks = [checkpoint_saver(tmp_path / 'theirs')]
        with LogLines() as lines:
            train_quietly(train_op, tmp_path / 'ours', on_nan='rollback', hooks=hooks)
        assert not [line for line in lines if 'but this session keeps' in line]


class TestTwoTrainings:
    """Two trainings write to one logdir at the same time: the second warns of it."""

    WORDS = 'another training is writing to '

    def warnings_of(self, logdir):
        class Once(tf1.train.SessionRunHook):
            def after_run(self, run_context, run_values):
                run_context.request_stop()

        with tf.Graph().as_default(), LogLines() as lines:
            model = Linear()
            train_op = slimguard.create_train_op(model.loss, model.optimizer)
            train_quietly(train_op, logdir, number_of_steps=None, hooks=[Once()])
        return [line for line in lines if self.WORDS in line]

    def warnings_while_held(self, logdir):
        with LogLines() as lines, occupied(str(logdir)):
            pass
        return [line for line in lines if self.WORDS in line]

    @pytest.mark.full
    def test_the_second_says_so_and_trains_until_the_first_is_killed(self, tmp_path):
        first = Forked(
            [ROOT / 'tests' / 'data' / 'scripts' / 'train_until_told.py', tmp_path],
            environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert first.stdout.readline() == b'training\n'
            (line,) = self.warnings_of(tmp_path)
            assert line.startswith('%s%s at the moment.' % (self.WORDS, tmp_path))
            assert checkpoint_at(tmp_path)[0] >= 1
        finally:
            first.send_signal(signal.SIGKILL)
            first.communicate()
        assert self.warnings_of(tmp_path) == []

    def test_who_watches_and_the_user_lock_the_logdir_itself_without_an_alarm(self, tmp_path):
        number = os.open(str(tmp_path), os.O_RDONLY)  # like `flock LOGDIR python train.py`
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            assert self.warnings_of(tmp_path) == []
        finally:
            os.close(number)

    def test_a_child_of_a_training_that_was_killed_holds_nothing(self, tmp_path):
        read, write = os.pipe()
        started, start = os.pipe()
        training = os.fork()
        if not training:
            with occupied(str(tmp_path)):
                if not os.fork():  # a worker, which lives on
                    os.write(start, b'.')
                    os.close(write)
                    os.read(read, 1)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)
        try:
            os.waitpid(training, 0)
            os.read(started, 1)
            assert self.warnings_while_held(tmp_path) == []
        finally:
            for number in (write, read, started, start):
                os.close(number)

    @pytest.mark.full
    def test_where_there_are_no_locks_or_no_folder_can_be_made_nothing_is_said(
        self, tmp_path, monkeypatch
    ):
        def lockf(*args):
            raise OSError(37, 'no locks')

        (tmp_path / 'slimguard').write_text('in the way')
        assert self.warnings_while_held(tmp_path) == []
        monkeypatch.setattr(fcntl, 'lockf', lockf)
        assert self.warnings_while_held(tmp_path / 'logs') == []
