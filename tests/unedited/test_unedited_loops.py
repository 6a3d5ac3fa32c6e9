"""Loops without slimguard's functions: under `instrument`, each is guarded and obeys the policy."""

import contextlib
import functools
import os
import re
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.diagnosis.bundle import paths as bundle_paths
from slimguard.gate import gates_of
from slimguard.graph import op_of
from slimguard.unedited import script_files
from tests.helpers.children import forked_python
from tests.helpers.models import Linear, LogLines, checkpoint_at, non_finite, records_in, state

tf1 = tf.compat.v1
slim = compat.import_slim()
STEPS = 6


def plain(model, train_op, logdir, watch):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(STEPS):
            session.run([train_op, model.loss])
            watch(session)


def interactive(model, train_op, logdir, watch):
    session = tf1.InteractiveSession()
    try:
        tf1.global_variables_initializer().run()
        for _ in range(STEPS):
            train_op.run() if isinstance(train_op, tf.Operation) else train_op.eval()
            watch(session)
    finally:
        session.close()


def by_callable(model, train_op, logdir, watch):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        step = session.make_callable([train_op, model.loss])
        for _ in range(STEPS):
            step()
            watch(session)


def monitored(model, train_op, logdir, watch):
    hooks = [tf1.train.NanTensorHook(model.loss), tf1.train.StopAtStepHook(num_steps=4)]
    with tf1.train.MonitoredTrainingSession(checkpoint_dir=str(logdir), hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)
            if not session.should_stop():
                session.run_step_fn(lambda step_context: watch(step_context.session))


def supervised(model, train_op, logdir, watch):
    supervisor = tf1.train.Supervisor(logdir=str(logdir), save_summaries_secs=0)
    with supervisor.managed_session() as session:
        for _ in range(STEPS):
            if supervisor.should_stop():
                break
            session.run(train_op)
            watch(session)


def slim_learning(model, train_op, logdir, watch):
    def step(session, *args):
        result = slim.learning.train_step(session, *args)
        watch(session)
        return result

    loss = train_op
    if isinstance(train_op, tf.Operation):
        with tf.control_dependencies([train_op]):
            loss = tf.identity(model.loss)
    given = {'number_of_steps': 4, 'log_every_n_steps': 0, 'save_summaries_secs': 0}
    slim.learning.train(loss, str(logdir), train_step_fn=step, **given)


def in_threads(model, train_op, logdir, watch):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        errors = []
        # The third batch is bad. It comes after the first two are written, and with no other step
        # beside it: else another thread may change the global step before the incident reads it.
        both, alone = threading.Barrier(2), threading.Lock()

        def train():
            try:
                session.run(train_op)
                both.wait(300)
                with alone:
                    session.run(train_op)
                for _ in range(2, STEPS // 2):
                    session.run(train_op)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        watch(session)
        for error in errors:
            raise error


LOOPS = [interactive, by_callable, supervised, slim_learning, in_threads]
# tests/training/test_every_loop.py has the policies in `plain` and `monitored`.
other_loops = pytest.mark.parametrize('loop', LOOPS, ids=lambda loop: loop.__name__)


def run(loop, logdir, on_nan, bad=(2,), minimize=Linear.minimize, value=np.nan, **kwargs):
    """Runs a loop. Returns the states that it was in after each step."""
    states = []
    guards = contextlib.ExitStack()
    if on_nan is not None:
        guards.enter_context(slimguard.instrument(on_nan=on_nan, logdir=logdir, **kwargs))

    def watch(session):
        states.append(state(session))
        assert non_finite(session) == []

    with guards, tf.Graph().as_default():
        tf1.set_random_seed(1)
        model = Linear(bad=bad, value=value)
        loop(model, minimize(model), logdir, watch)
    return states


@functools.lru_cache(maxsize=None)
def states_without_guard():
    """The states after each step on good batches. All loops have the same, so one is run once."""
    return run(plain, None, None, bad=())


@pytest.mark.full
@pytest.mark.parametrize('loop', [plain, monitored, *LOOPS], ids=lambda loop: loop.__name__)
def test_a_bad_batch_is_skipped_and_the_rest_trains_to_the_same_bits(loop, tmp_path):
    guarded = run(loop, tmp_path / 'guarded', 'skip')
    unguarded = states_without_guard()
    assert guarded and unguarded
    if loop is in_threads:
        assert len(records_in(tmp_path / 'guarded')) == 1
        return
    # The bad batch is the third; from there on, the unguarded run has other batches at each step.
    assert guarded[:2] == unguarded[:2]
    assert guarded[2] == guarded[1] != guarded[3]
    (record,) = records_in(tmp_path / 'guarded')
    assert (record['step'], record['action']) == (2, 'skip')
    assert 'bad data' in record['diagnosis']
    assert len(list((tmp_path / 'guarded' / 'slimguard').glob('step-*'))) == 1


@pytest.mark.full
@other_loops
def test_raise_ends_it_with_the_incident(loop, tmp_path):
    with pytest.raises(slimguard.NanLossError) as raised:
        run(loop, tmp_path, 'raise')
    assert raised.value.incident.step == 2
    (record,) = records_in(tmp_path)
    assert record['action'] == 'raise'


@pytest.mark.full
@other_loops
def test_stop_ends_it_as_the_end_of_the_input_does(loop, tmp_path):
    # These loops ask whether to stop, and end without an error.
    asks = loop in (supervised, slim_learning)
    ends = contextlib.ExitStack() if asks else pytest.raises(tf.errors.OutOfRangeError)
    with ends:
        run(loop, tmp_path, 'stop')
    (record,) = records_in(tmp_path)
    assert (record['step'], record['action']) == (2, 'stop')


@pytest.mark.full
@other_loops
def test_rollback_goes_back_and_the_loop_goes_on(loop, tmp_path):
    states = run(loop, tmp_path, 'rollback')
    (record,) = records_in(tmp_path)
    assert record['action'] == 'rollback' and record['restored'] is not None
    if loop in (interactive, by_callable):  # they save nothing, so back to before the first step
        assert [model_step(each) for each in states] == [1, 2, 0, 1, 2, 3]


@pytest.mark.full
def test_rollback_goes_back_to_what_the_scripts_own_saver_wrote(tmp_path):
    logdir = tmp_path / 'own'

    def saving(model, train_op, _, watch):
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for number in range(STEPS):
                session.run(train_op)
                watch(session)
                if number < 2:
                    saver.save(session, str(logdir / 'model.ckpt'), number)

    (tmp_path / 'own').mkdir()
    states = run(
        lambda *args: saving(args[0], args[1], tmp_path / 'own', args[3]), None, 'rollback'
    )
    assert states[2] == states[1]
    (record,) = records_in(logdir)
    assert record['restored'] == str(logdir / 'model.ckpt-1')


class OwnDescent(tf1.train.Optimizer):
    """An optimizer without a kernel of TensorFlow's, as in repositories of papers."""

    def __init__(self):
        tf1.train.Optimizer.__init__(self, False, 'OwnDescent')

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = [v.assign(v - 0.1 * gradient) for gradient, v in grads_and_vars]
        return tf.group(*updates, global_step.assign_add(1))


@pytest.mark.full
def test_an_optimizer_that_runs_no_kernel_of_tensorflows_is_one(tmp_path):
    def minimize(model):
        return OwnDescent().minimize(model.loss, global_step=model.step)

    guarded = run(supervised, tmp_path / 'guarded', 'skip', minimize=minimize, capture=False)
    assert guarded[:2] == run(plain, None, None, bad=(), minimize=minimize)[:2]
    assert guarded[2] == guarded[1] != guarded[3]


@pytest.mark.full
def test_what_waits_for_the_update_and_is_fetched_beside_it_runs_once(tmp_path):
    def loop(model, train_op, logdir, watch):
        with tf.control_dependencies([train_op]):
            count = tf1.assign_add(tf1.get_variable('n', initializer=0), 1)
            after = tf.identity(model.loss)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for number in range(STEPS):
                done, n, loss = session.run([train_op, count, after])
                assert done is None
                assert n == min(number + 1, 2) if number <= 2 else n == number
                assert np.isfinite(loss) == (number != 2)
                watch(session)

    states = run(loop, tmp_path, 'skip')
    assert states[2] == states[1] != states[3]
    assert model_step(states[-1]) == STEPS - 1


def model_step(values):
    return np.frombuffer(values['global_step:0'], np.int64)[0]


@pytest.mark.full
def test_two_trainings_in_one_run_are_two_decisions(tmp_path):
    def loop(model, train_op, logdir, watch):
        other = tf1.get_variable('other', initializer=3.0)
        descent = tf1.train.GradientDescentOptimizer(0.1).minimize(other * other)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(STEPS):
                session.run({'one': train_op, 'more': [descent, model.loss]})
                watch(session)

    states = run(loop, tmp_path, 'skip')
    assert states[2]['w:0'] == states[1]['w:0']
    assert states[2]['other:0'] != states[1]['other:0']


def per_example(model):
    return tf.square(tf.matmul(model.batches.x, model.weights) - 1.0)


def of_no_known_shape(model):
    return tf1.placeholder_with_default(per_example(model), None)


@pytest.mark.full
@pytest.mark.parametrize(
    'loss, value, max_loss', [(per_example, 1e6, 100.0), (of_no_known_shape, np.nan, None)]
)
def test_a_loss_may_have_a_value_for_each_example(loss, value, max_loss, tmp_path):
    def minimize(model):
        return model.optimizer.minimize(loss(model), global_step=model.step)

    kwargs = {'minimize': minimize, 'value': value, 'max_loss': max_loss}
    states = run(plain, tmp_path / 'guarded', 'skip', **kwargs)
    unguarded = run(plain, tmp_path / 'plain', None, bad=(), minimize=minimize)
    assert states[:2] == unguarded[:2]
    assert states[2] == states[1] != states[3]
    (record,) = records_in(tmp_path / 'guarded')
    name = 'Square' if loss is per_example else 'PlaceholderWithDefault'
    assert 'loss ' + name in record['reason']


@pytest.mark.full
def test_histograms_of_what_waits_for_another_update_are_drawn_beside_the_step(tmp_path):
    def loop(model, train_op, logdir, watch):
        summary = tf1.summary.merge_all()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(STEPS):
                assert session.run([train_op, summary])[1]
                watch(session)

    with LogLines() as lines:
        guarded = run(loop, tmp_path, 'skip', minimize=after_another_training)
    assert not [line for line in lines if 'NOT guarded' in line]
    unguarded = run(loop, tmp_path, None, bad=(), minimize=after_another_training)
    assert guarded[:2] == unguarded[:2]
    assert guarded[2] == guarded[1] != guarded[3]


def after_another_training(model):
    """As in a GAN: one optimizer computes its gradients once the other has written."""
    other = tf1.get_variable('other', initializer=3.0)
    first = tf1.train.AdamOptimizer(0.1).minimize(other * other * model.batches.x[0, 0])
    with tf.control_dependencies([first]):
        gradients = model.optimizer.compute_gradients(model.loss)
        tf1.summary.histogram('gradient', gradients[0][0])
    return model.optimizer.apply_gradients(gradients[:1], global_step=model.step)


def test_a_scripts_own_saver_publishes_nothing_that_is_not_finite(tmp_path):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path), tf1.Session() as session:
        weights = tf1.get_variable('w', initializer=1.0)
        saver = tf1.train.Saver()
        session.run(tf1.global_variables_initializer())
        good = saver.save(session, str(tmp_path / 'model.ckpt'), 1)
        session.run(weights.assign(np.nan))
        with LogLines() as lines:
            assert saver.save(session, str(tmp_path / 'model.ckpt'), 2) is None
    assert any('is refused, not finite: w' in line for line in lines)
    assert tf1.train.latest_checkpoint(str(tmp_path)) == good


@pytest.mark.full
@pytest.mark.parametrize(
    'loop, given, bundles', [(plain, {'max_bundles': 1}, 1), (monitored, {'capture': False}, 0)]
)
def test_so_many_bundles_are_kept_as_was_said(loop, given, bundles, tmp_path):
    run(loop, tmp_path, 'skip', bad=(1, 3, 4), **given)
    assert len(bundle_paths(str(tmp_path))) == bundles
    diagnoses = [record['diagnosis'] for record in records_in(tmp_path)]
    assert (diagnoses[0] is not None) == (bundles > 0)


SCRIPT = """
import sys

import numpy as np
import tensorflow as tf

x = tf.placeholder(tf.float32, [None, 3])
w = tf.get_variable('w', [3, 1], initializer=tf.ones_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0), name='squares')
step = tf.train.get_or_create_global_step()
train_op = tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
saver = tf.train.Saver()
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for number in range(10):
        batch = np.ones([4, 3])
        if number == 5:
            batch[0] = np.nan
        session.run(train_op, {x: batch})
        saver.save(session, 'logs/model.ckpt', number)
    print('finite', np.isfinite(session.run(w)).all(), session.run(step))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    'on_nan, status, said',
    [
        ('stop', 0, '6 steps, 1 incident in this run (stop 1)'),
        ('raise', 1, '6 steps, 1 incident in this run (raise 1)'),
    ],
)
def test_a_script_ends_with_what_was_guarded_and_the_next_command(on_nan, status, said, tmp_path):
    (tmp_path / 'script.py').write_text(SCRIPT)
    (tmp_path / 'logs').mkdir()
    arguments = ['run', '--tf1', '--on_nan=' + on_nan, 'script.py']
    run = forked_python('-m', 'slimguard', *arguments, cwd=str(tmp_path))
    assert (run.returncode, run.stdout.strip()) == (status, ''), run.stderr
    last = run.stderr.splitlines()[-2:]  # the error of 'raise' ends with the command
    command, result = last if on_nan == 'raise' else reversed(last)
    assert result == 'slimguard: guarded Adam: %s' % said
    assert command.endswith('python -m slimguard report %s' % (tmp_path / 'logs'))
    assert checkpoint_at(tmp_path / 'logs')[1] == []
    (incident,) = records_in(tmp_path / 'logs')
    assert 'bad data' in incident['diagnosis'] and 'loss squares' in incident['reason']
    if on_nan == 'raise':
        assert 'NanLossError: Bad step at global step 5 (loss nan)' in run.stderr
    # Nothing after the loop runs, and the exit status does not show it.
    told = "'stop' ended the script inside its loop"
    newest = 'The newest checkpoint that it saved is %s.' % (tmp_path / 'logs' / 'model.ckpt-4')
    assert (told in run.stderr and newest in run.stderr) == (on_nan == 'stop')


def test_each_start_of_a_script_that_saves_nothing_has_a_folder_which_the_last_line_names(tmp_path):
    lines = [line for line in SCRIPT.splitlines() if 'saver' not in line]
    (tmp_path / 'script.py').write_text('\n'.join(lines))
    seen = set()
    for on_nan in ('skip', 'stop'):
        arguments = ['run', '--tf1', '--on_nan=' + on_nan, '--history=0', 'script.py']
        run = forked_python('-m', 'slimguard', *arguments, cwd=str(tmp_path))
        assert run.returncode == 0, run.stderr
        assert (run.stdout.strip() == 'finite True 9') == (on_nan == 'skip')
        (new,) = set((tmp_path / 'slimguard-logs').iterdir()) - seen
        seen.add(new)
        assert re.match(r'script-\d{8}-\d{6}(-2)?$', new.name)
        (record,) = records_in(new)
        assert record['action'] == on_nan
        assert run.stderr.splitlines()[-1].endswith('python -m slimguard report %s' % new)
        lost = 'It saved no checkpoint, so what it trained is lost' in run.stderr
        assert lost == (on_nan == 'stop')
    assert {path.name for path in tmp_path.iterdir()} == {'script.py', 'slimguard-logs'}


@pytest.mark.parametrize(
    'path, name',
    [('./train.py', 'train'), ('/a/package/__main__.py', 'package'), ('-c', 'python')],
)
def test_starts_in_the_same_second_have_folders_of_their_own(path, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', [path])
    monkeypatch.setattr(script_files.time, 'strftime', lambda _: 'now')
    starts = [script_files.FallbackFolder() for _ in range(3)]
    os.chdir(os.sep)
    paths = [start.path() for start in starts]
    expected = [name + '-now', name + '-now-2', name + '-now-3']
    assert paths == [str(tmp_path / 'slimguard-logs' / each) for each in expected]
    assert [start.path() for start in starts] == paths


@pytest.mark.full
def test_a_script_that_exits_with_0_has_come_to_its_end(tmp_path):
    (tmp_path / 'script.py').write_text('import sys; sys.exit(0)')
    run = forked_python('-m', 'slimguard', 'run', 'script.py', cwd=str(tmp_path))
    assert run.returncode == 0 and 'this script ran no session' in run.stderr


@pytest.mark.full
def test_a_synchronous_optimizer_waits_for_no_token_that_a_bad_step_kept(tmp_path):
    def synchronous(model):
        optimizer = tf1.train.SyncReplicasOptimizer(model.optimizer, replicas_to_aggregate=1)
        train_op = optimizer.minimize(model.loss, global_step=model.step)
        hooks.append(optimizer.make_session_run_hook(is_chief=True, num_tokens=1))
        return train_op

    def loop(model, train_op, logdir, watch):
        settings = {'hooks': hooks, 'stop_grace_period_secs': 1}  # by default a session waits long
        with tf1.train.MonitoredTrainingSession(**settings) as session:
            for _ in range(STEPS):
                session.run(train_op)
                session.run_step_fn(lambda step_context: watch(step_context.session))
        originals.extend(gate.original for gate in gates_of(tf1.get_default_graph()).values())

    originals: list = []
    hooks = []
    run(loop, tmp_path, 'skip', bad=(2, 3), minimize=synchronous)
    assert [record['action'] for record in records_in(tmp_path)] == ['skip', 'skip']
    assert originals and not any('Queue' in op_of(each).type for each in originals)


@pytest.mark.skipif(not hasattr(tf1, 'estimator'), reason='TensorFlow has no Estimators any more')
@pytest.mark.parametrize('on_nan, steps', [('skip', 5), ('stop', 2), ('rollback', 3)])
def test_an_estimator_obeys(on_nan, steps, tmp_path):
    def read():
        batches = np.ones([6, 4, 3], np.float32)
        batches[2, 1, 1] = np.nan
        return tf.data.Dataset.from_tensor_slices((batches, batches[:, :, 0]))

    def build(features, labels, mode):
        weights = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(features, weights)[:, 0] - labels))
        step = tf1.train.get_global_step()
        train_op = tf1.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
        return tf1.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    with slimguard.instrument(on_nan=on_nan):
        tf1.estimator.Estimator(build, str(tmp_path)).train(read)
    assert checkpoint_at(tmp_path) == (steps, [])
    (record,) = records_in(tmp_path)
    assert record['action'] == on_nan


@pytest.mark.full
@pytest.mark.parametrize('guards_itself', [False, True])
def test_a_loss_above_max_loss_is_a_bad_step_of_a_train_op_of_slims_too(guards_itself, tmp_path):
    with slimguard.instrument(on_nan='raise', max_loss=1e-6, logdir=tmp_path):
        model = Linear()
        create = (slimguard if guards_itself else slim.learning).create_train_op
        train_op = create(model.loss, model.optimizer)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            before = state(session)
            with pytest.raises(slimguard.NanLossError, match='above max_loss'):
                session.run(train_op)
            assert state(session) == before
