"""All loops behave alike: a test for each cell of the README's table."""

import contextlib
import os
import re
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.checkpoints import checkpoint_reader, snapshots
from slimguard.diagnosis.bundle import paths as bundle_paths
from tests.helpers import checkpoints
from tests.helpers.children import ROOT, forked_python
from tests.helpers.loops import EDITED, LOOPS, Given
from tests.helpers.models import Linear, LogLines, checkpoint_at, records_in

tf1 = tf.compat.v1

each_loop = pytest.mark.parametrize('loop', LOOPS.values(), ids=LOOPS)
# For code that all loops share: a loop of slimguard's own, and an unedited script.
two_loops = pytest.mark.parametrize(
    'loop',
    [LOOPS['slimguard.train'], LOOPS['unedited: a plain session']],
    ids=['edited', 'unedited'],
)
pytestmark = pytest.mark.usefixtures('ctrl_c_is_pythons')


def given(logdir, **kwargs):
    """The arguments of a training, without a diagnosis of bad steps."""
    return Given(str(logdir), capture=False, **kwargs)


def interrupt_at(draw):
    return lambda drawn: drawn == draw and os.kill(os.getpid(), signal.SIGINT)


def steps_of(records):
    return [(record['step'], record['action']) for record in records]


def told_of_skips(lines):
    told = [line for line in lines if re.search('batches (was|were) skipped', line)]
    return [re.split(r'[;\n]', line)[0].rstrip('.') for line in told]


@pytest.mark.every_cell
@each_loop
class TestEachPolicy:
    def test_skip_goes_on_and_the_record_a_bundle_and_the_end_say_why(self, loop, tmp_path):
        with LogLines() as lines:
            trained = loop(Given(str(tmp_path), on_nan='skip', bad=(3,)))
        assert trained.drawn == 7
        assert told_of_skips(lines) == ['1 of 7 batches was skipped']
        (last,) = [line for line in lines if 'batches was skipped; the last cause found: ' in line]
        assert last.endswith(
            '.\n    to see what happened: python -m slimguard report %s' % tmp_path
        )
        (record,) = records_in(tmp_path)
        assert (record['step'], record['action'], record['held']) == (3, 'skip', True)
        assert 'bad data: 1 NaN among 12 values, in row 1' in record['diagnosis']
        assert [record['bundle']] == bundle_paths(str(tmp_path))
        assert checkpoint_at(tmp_path) == (6, [])

    def test_raise_saves_the_last_good_state(self, loop, tmp_path):
        with pytest.raises(slimguard.NanLossError, match='global step 3'):
            loop(given(tmp_path, on_nan='raise', bad=(3,)))
        assert checkpoint_at(tmp_path) == (3, [])
        assert steps_of(records_in(tmp_path)) == [(3, 'raise')]

    def test_stop_ends_cleanly_and_the_log_gives_the_command(self, loop, tmp_path):
        with LogLines() as lines:
            try:
                assert loop(given(tmp_path, on_nan='stop', bad=(3,))).drawn == 4
            except tf.errors.OutOfRangeError as error:  # 'stop' ends a script's loop by this error
                assert 'the training is stopped' in str(error)
        told = [line for line in lines if "'stop' ended the training" in line]
        is_script = any(loop is LOOPS[name] for name in LOOPS if name.startswith('unedited'))
        assert len(told) == (0 if is_script else 1)  # a script has a last line on stderr
        assert all('python -m slimguard report %s' % tmp_path in line for line in told)
        assert checkpoint_at(tmp_path)[1] == []
        assert steps_of(records_in(tmp_path)) == [(3, 'stop')]

    def test_rollback_goes_back(self, loop, tmp_path):
        loop(given(tmp_path, on_nan='rollback', bad=(3,)))
        (record,) = records_in(tmp_path)
        assert record['action'] == 'rollback'
        assert os.path.basename(record['restored']) == 'model.ckpt-0'
        assert checkpoint_at(tmp_path) == (6, [])


@pytest.mark.full
@each_loop
def test_ctrl_c_lets_the_step_finish_saves_and_names_the_checkpoint(loop, tmp_path):
    with LogLines() as lines, pytest.raises(KeyboardInterrupt) as caught:
        loop(given(tmp_path, bad=interrupt_at(4), steps=1000))
    assert checkpoint_at(tmp_path) == (5, [])
    saved = 'Ctrl-C: saved %s (global step 5)' % checkpoints.newest(tmp_path)
    assert lines[-1] == saved
    assert caught.traceback[-1].name == 'raising_shortly'  # one line of ours, and none before it


@each_loop
def test_a_training_resumes_from_a_good_checkpoint(loop, tmp_path):
    loop(given(tmp_path, steps=2))
    with tf.Graph().as_default():
        loop(given(tmp_path, steps=4))
    newest = checkpoints.newest(tmp_path)
    assert newest.endswith('model.ckpt-4')
    checkpoints.truncate(newest + '.data-00000-of-00001')
    # The step in the checkpoint, not in its name: slim saves while steps go on.
    good = checkpoint_reader.inspect(slimguard.latest_finite_checkpoint(tmp_path)).step
    with tf.Graph().as_default(), LogLines() as lines:
        assert loop(given(tmp_path, steps=5)).began_at == good
    assert [line for line in lines if 'resuming from' in line and 'model.ckpt-4 is' in line]


@pytest.mark.full
@two_loops
def test_max_loss(loop, tmp_path):
    with pytest.raises(slimguard.NanLossError, match='above max_loss'):
        loop(given(tmp_path, on_nan='raise', max_loss=1e-6))


@each_loop
def test_rollback_goes_back_to_a_state_in_memory(loop, tmp_path):
    trained = loop(given(tmp_path, on_nan='rollback', bad=(25,), steps=30))
    (record,) = records_in(tmp_path)
    assert (record['step'], record['restored']) == (25, 'a snapshot of global step 11')
    assert trained.drawn == 26 + 19
    assert checkpoint_at(tmp_path) == (30, [])


def test_a_callable_may_return_rollback_so_there_are_states_to_go_back_to(tmp_path):
    LOOPS['watch'](given(tmp_path, on_nan=lambda incident: 'rollback', bad=(3, 50), steps=60))
    first, second = [os.path.basename(record['restored']) for record in records_in(tmp_path)]
    assert first == 'model.ckpt-0' and second.startswith('a snapshot of global step')


@pytest.mark.full
@two_loops
def test_raise_saves_a_state_that_is_not_ruined(loop, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, 'FAR', 1e-9)  # so the weights always count as ruined
    policies = [slimguard.Skip(1), slimguard.Rollback(1), 'raise']
    with pytest.raises(slimguard.NanLossError, match='the weights are taken for ruined'):
        loop(given(tmp_path, on_nan=policies, bad=(25, 50), steps=60))
    assert steps_of(records_in(tmp_path)) == [(25, 'rollback'), (35, 'raise')]
    assert checkpoint_at(tmp_path) == (11, [])


@pytest.mark.full
@two_loops
def test_a_spent_budget_for_skipping_gives_way(loop, tmp_path):
    on_nan = [slimguard.Skip(max_ratio=0.002), 'raise']
    why = '2 of the 5 steps before were skipped, and max_ratio=0.002 allows no more'
    with LogLines() as lines, pytest.raises(slimguard.NanLossError, match=why):
        loop(given(tmp_path, on_nan=on_nan, bad=(1, 3, 5)))
    assert told_of_skips(lines) == ['2 of 6 batches were skipped']
    records = records_in(tmp_path)
    assert [each['action'] for each in records] == ['skip', 'skip', 'raise']
    assert [why in each['reason'] for each in records] == [False, False, True]


def test_where_nothing_was_skipped_nothing_is_said(tmp_path):
    with LogLines() as lines:
        LOOPS['watch'](given(tmp_path, on_nan='skip'))
    assert not told_of_skips(lines)


@pytest.mark.full
def test_a_run_past_the_hooks_counts_as_well(tmp_path):
    model = Linear(bad=(1, 2))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    inner = tf1.Session()
    with LogLines() as lines:
        with slimguard.watch(inner, on_nan='skip', logdir=tmp_path) as session:
            session.run(tf1.global_variables_initializer())
            session.run(train_op)
            session.run(train_op)
            inner.run(train_op)
    assert told_of_skips(lines) == ['2 of 3 batches were skipped']


@pytest.mark.full
@pytest.mark.parametrize('name', LOOPS)
def test_sigterm_lets_the_step_finish_and_saves(name, tmp_path):
    program = 'from tests.helpers import loops; import sys; loops.main(sys.argv[1:])'
    arguments = [program, name, tmp_path, '4']
    done = forked_python('-c', *arguments, stderr=subprocess.STDOUT, cwd=str(ROOT))
    assert done.returncode == -signal.SIGTERM, done.stdout
    assert checkpoint_at(tmp_path) == (5, [])


@each_loop
def test_what_is_not_finite_is_not_published(loop, tmp_path):
    """The variable is NaN, and no train op writes it."""
    with tf.Graph().as_default():
        stray = tf1.get_variable('stray', initializer=np.float32('nan'), trainable=False)
        assert stray is not None
        try:
            loop(given(tmp_path, steps=2))
        except Exception as error:  # a loop may raise, if it names the variable
            assert 'stray' in str(error)
    assert checkpoint_at(tmp_path)[1] == []


@pytest.mark.full
@pytest.mark.parametrize('loop', EDITED.values(), ids=EDITED)
def test_the_progress_is_shown(loop, tmp_path, monkeypatch):
    pytest.importorskip('tqdm')
    pty = pytest.importorskip('pty')  # there is none on Windows
    ours, theirs = pty.openpty()
    size = struct.pack('HHHH', 24, 100, 0, 0)
    pytest.importorskip('fcntl').ioctl(theirs, pytest.importorskip('termios').TIOCSWINSZ, size)
    with open(theirs, 'w') as terminal:
        monkeypatch.setattr(sys, 'stderr', terminal)
        loop(given(tmp_path, on_nan='skip', bad=(3,), steps=9, progress=True))
        monkeypatch.undo()
        terminal.flush()
        written = os.read(ours, 10**5).decode()
    os.close(ours)
    assert re.search(r'step.*, loss \d.*, 1 incident', written)


# Weights that are ruined by finite numbers: from some step on the input is this large.
FAR = 1e15


def in_train(model, logdir, on_nan):
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    saves = tf1.train.CheckpointSaverHook(logdir, save_steps=10)
    slimguard.train(
        train_op, logdir, number_of_steps=40, log_every_n_steps=0, on_nan=on_nan, hooks=[saves]
    )


def in_monitored_session(model, logdir, on_nan):
    train_op = slimguard.guard(model.minimize(), loss=model.loss)
    hooks = [slimguard.NanLossHook(model.loss, on_nan=on_nan)]
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=logdir, save_checkpoint_steps=10, hooks=hooks
    ) as session:
        while not session.should_stop():
            session.run(train_op)


def unedited(model, logdir, on_nan):
    with slimguard.instrument(on_nan=on_nan):
        train_op = model.minimize()
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for step in range(40):
                if step % 10 == 0:
                    saver.save(session, logdir + '/model.ckpt', global_step=step)
                session.run(train_op)


@pytest.mark.full
@pytest.mark.parametrize(
    ('loop', 'on_nan'),
    [(unedited, 'raise'), (in_train, 'skip:1,raise'), (in_monitored_session, 'raise')],
)
def test_without_a_rollback_ruined_weights_follow_no_good_checkpoint(loop, on_nan, tmp_path):
    model = Linear(bad=lambda draw: draw >= 25, value=FAR)
    with LogLines() as lines, pytest.raises(slimguard.NanLossError) as caught:
        loop(model, str(tmp_path), on_nan)
    assert 'the weights are taken for ruined' in caught.value.incident.reason
    assert 'a smaller learning rate' in str(caught.value)  # the advice
    assert checkpoint_at(tmp_path) == (20, [])
    (line,) = [line for line in lines if 'this state is saved apart, as' in line]
    assert line.endswith('/slimguard/ruined.ckpt; a restart begins at %s/model.ckpt-20.' % tmp_path)


@pytest.mark.full
@pytest.mark.parametrize('loop', [unedited, in_train, in_monitored_session])
def test_after_stop_no_loop_saves_ruined_weights_as_the_newest(loop, tmp_path):
    model = Linear(bad=lambda draw: draw >= 25, value=FAR)
    with LogLines() as lines, contextlib.suppress(tf.errors.OutOfRangeError):  # of a script
        loop(model, str(tmp_path), 'stop')
    assert checkpoint_at(tmp_path) == (20, [])
    told = 'saved apart, as %s/slimguard/ruined.ckpt), so the variables are put back to ' % tmp_path
    assert sum(told in line for line in lines) == 1
    assert 'the weights are taken for ruined' in records_in(tmp_path)[-1]['reason']


@pytest.mark.full
def test_a_training_that_explodes_at_once_keeps_what_it_began_with(tmp_path):
    model = Linear(bad=lambda draw: draw >= 3, value=FAR)
    with pytest.raises(slimguard.NanLossError, match='the weights are taken for ruined'):
        in_train(model, str(tmp_path), 'raise')
    assert checkpoint_at(tmp_path) == (0, [])


class Asks(tf1.train.SessionRunHook):
    """A hook that fetches something in each step."""

    def __init__(self, fetches):
        self._fetches = fetches

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._fetches)


def monitored(train_op, hooks):
    with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
        session.run(train_op)


def watched(train_op, hooks):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        with slimguard.watch(session, hooks) as session:
            session.run(train_op)


def by_slim(train_op, hooks):
    slimguard.train(train_op, None, hooks=hooks, number_of_steps=1)


@pytest.mark.every_cell
@pytest.mark.parametrize('loop', [monitored, watched, by_slim], ids=lambda each: each.__name__)
def test_what_a_hook_fetches_around_a_gate_is_refused_by_name(loop):
    def train(asked):
        """Trains with a hook that fetches one of the tensors in `found`."""
        with tf.Graph().as_default():
            x = tf.random.uniform([3])
            w, mean = (tf1.get_variable(name, [3]) for name in ('w', 'mean'))
            loss = tf.reduce_sum(tf.square(w - x), name='loss')
            optimizer, step = tf1.train.AdamOptimizer(), tf1.train.get_or_create_global_step()
            update = tf.group(tf1.assign(mean, 0.9 * mean + 0.1 * x))
            train_op = slimguard.create_train_op(loss, optimizer, step, variables_to_train=[w])
            original = slimguard.gate.gate_of(train_op).original
            found = {'read': {'all': [loss, w, step]}, 'update': update, 'original': [original]}
            loop(train_op, [slimguard.NanLossHook(train_op, on_nan='skip'), Asks(found[asked])])

    train('read')
    for asked, does in (
        ('update', 'It writes mean, with values'),
        ('original', 'It runs again what'),
    ):
        with pytest.raises(ValueError, match='fetched by Asks, beside a guarded.*' + does):
            train(asked)
