"""create_train_op and train, in place of slim's."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat, gate, learning
from tests.helpers.children import forked_python
from tests.helpers.models import (
    Counted,
    Linear,
    LogLines,
    checkpoint_at,
    non_finite,
    records_in,
    train_quietly,
)

tf1 = tf.compat.v1
slim = compat.import_slim()


def build(check_numerics=False, **kwargs):
    model = Linear(**kwargs)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=check_numerics)
    return model, train_op


def train(train_op, logdir=None, number_of_steps=6, **kwargs):
    return slimguard.train(
        train_op,
        logdir and str(logdir),
        number_of_steps=number_of_steps,
        log_every_n_steps=0,
        **kwargs,
    )


class Ending(tf1.train.SessionRunHook):
    """Counts its calls, and looks at all weights after each step."""

    steps = ends = 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        assert not non_finite(run_context.session)

    def end(self, session):
        self.ends += 1


class TestSignatures:
    def parameters(self, function):
        return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]

    def test_create_train_op_is_slims(self):
        theirs = self.parameters(slim.learning.create_train_op)
        assert self.parameters(slimguard.create_train_op) == theirs

    def test_train_is_slims_and_a_few_more(self):
        more = [('hooks', None), ('on_nan', None), ('max_loss', None), ('progress', False)]
        more += [('capture', True), ('max_bundles', 5), ('ends_job', True)]
        more += [('preemption_seconds', 10.0), ('spike', None), ('history', 200)]
        assert self.parameters(slimguard.train) == self.parameters(slim.learning.train) + more

    def test_every_other_name_is_slims_own(self):
        assert set(slim.learning.__all__) <= set(dir(learning))
        for name in slim.learning.__all__:
            replaced = name in ('create_train_op', 'train')
            assert (getattr(learning, name) is getattr(slim.learning, name)) != replaced
        assert learning.supervisor is slim.learning.supervisor


class TestCreateTrainOp:
    def test_the_guarded_op_is_in_the_collection(self):
        _, train_op = build()
        assert gate.gate_of(train_op) is not None
        collected = tf1.get_collection(tf1.GraphKeys.TRAIN_OP)
        assert any(element is train_op for element in collected)
        original = gate.gate_of(train_op).original
        assert not any(element is original for element in collected)

    @pytest.mark.parametrize('check_numerics', [True, False])
    def test_check_numerics_decides_whether_a_plain_session_raises(self, check_numerics, capfd):
        model, train_op = build(check_numerics, bad=(0,))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            if check_numerics:
                with pytest.raises(tf.errors.InvalidArgumentError, match='inf or nan') as caught:
                    session.run(train_op)
                labels = gate.labels_in(caught.value.message)
                assert gate.explain(labels).tensors == ('loss (Mean)', 'gradient of w')
            else:
                assert np.isnan(session.run(train_op))
            printed = capfd.readouterr().err
            assert 'slimguard: this step wrote nothing (global step 0)' in printed
            assert 'loss (Mean), gradient of w' in printed
            assert session.run(model.step) == 0 and not non_finite(session)

    def test_clipping_and_multipliers_reach_slim(self):
        model = Linear()
        train_op = slimguard.create_train_op(
            model.loss,
            tf1.train.GradientDescentOptimizer(1.0),
            clip_gradient_norm=1e-3,
            gradient_multipliers={'w': 10.0},
            summarize_gradients=True,
        )
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train_op)
            moved = np.linalg.norm(session.run(model.weights) - 1.0)
        assert moved == pytest.approx(1e-3, rel=1e-3)
        assert tf1.get_collection(tf1.GraphKeys.SUMMARIES)


@pytest.mark.parametrize('check_numerics', [True, False])
class TestPolicies:
    """What `test_every_loop` leaves out: both strategies, and the value that `train` returns."""

    @pytest.mark.full
    def test_raise_is_the_default_and_is_caught_by_handlers_that_users_have(self, check_numerics):
        for handled in (tf1.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError):
            with tf.Graph().as_default():
                _, train_op = build(check_numerics, bad=(1,))
                with pytest.raises(handled, match='global step 1') as caught:
                    train(train_op)
                assert isinstance(caught.value, slimguard.NanLossError)

    @pytest.mark.full
    def test_stop_returns_the_last_finite_loss(self, check_numerics, tmp_path):
        model, train_op = build(check_numerics, bad=(3,))
        assert np.isfinite(train(train_op, tmp_path, on_nan='stop'))
        assert checkpoint_at(tmp_path) == (3, [])
        assert model.batches.drawn == 4

    def test_the_loss_of_a_held_step_is_not_returned(self, check_numerics):
        _, train_op = build(check_numerics, bad=(3,), value=1e6)
        assert train(train_op, on_nan='stop', max_loss=1e6) < 100

    @pytest.mark.full
    def test_a_hook_decides_and_its_callable_sees_each_incident(self, check_numerics, tmp_path):
        model, train_op = build(check_numerics, bad=(3, 4, 6))
        seen = []
        hook = slimguard.NanLossHook(
            model.loss, on_nan=lambda incident: seen.append(incident.step) or 'skip'
        )
        assert np.isfinite(train(train_op, tmp_path, hooks=[hook]))
        assert seen == [incident.step for incident in hook.incidents] == [3, 3, 4]
        strategy = 'check_numerics' if check_numerics else 'hook'
        assert [incident.strategy for incident in hook.incidents] == [strategy] * 3
        assert checkpoint_at(tmp_path) == (6, []) and model.batches.drawn == 9

    def test_a_train_op_built_by_hand_is_guarded_on_the_way_in(self, check_numerics):
        model = Linear(bad=(3,))
        loss = model.loss
        if check_numerics:
            loss = tf.debugging.check_numerics(loss, 'LossTensor is inf or nan')
        with tf.control_dependencies([model.minimize()]):
            train_op = tf.identity(loss)
        train(train_op, on_nan='skip', hooks=[Ending()])
        assert model.batches.drawn == 7


class TestArguments:
    """The arguments of slim.learning.train have the same effect."""

    def test_train_step_fn_and_kwargs(self):
        model, train_op = build(bad=(2,))
        seen = []

        def train_step_fn(session, op, global_step, kwargs):
            session.run(model.step)  # a run that is no step
            loss, step = session.run([op, global_step])
            seen.append((op is train_op, kwargs['mine'], bool(np.isfinite(loss))))
            return loss, len(seen) == 5

        hook = slimguard.NanLossHook(model.loss, on_nan='skip')
        train(train_op, train_step_fn=train_step_fn, train_step_kwargs={'mine': 7}, hooks=[hook])
        assert seen == [(True, 7, draw != 2) for draw in range(5)]
        assert model.batches.drawn == 5 and len(hook.incidents) == 1

    def test_a_step_function_that_holds_the_train_op_as_it_was(self, tmp_path):
        model = Linear(bad=(2,))
        given = model.minimize()
        ending = Ending()

        def train_step_fn(session, op, global_step, kwargs):
            session.run({'train': [given]})
            return session.run(model.step), model.batches.drawn == 5

        train(given, tmp_path, train_step_fn=train_step_fn, hooks=[ending], on_nan='skip')
        assert ending.steps == 5
        assert [record['action'] for record in records_in(tmp_path)] == ['skip']

    def test_session_wrapper_saver_and_init_fn(self, tmp_path):
        model, train_op = build(bad=(3,))
        calls = []

        saver = tf1.train.Saver([model.step, model.weights])
        with pytest.raises(slimguard.NanLossError):
            train(
                train_op,
                tmp_path,
                session_wrapper=lambda session: Counted(session, calls),
                saver=saver,
                init_fn=lambda session: calls.append('init_fn'),
            )
        assert calls[0] == 'init_fn' and calls.count('run') >= 4
        assert sorted(tf1.train.load_checkpoint(str(tmp_path)).get_variable_to_shape_map()) == [
            'global_step',
            'w',
        ]

    @pytest.mark.full
    def test_tracing_goes_on_after_a_step_that_was_held(self, tmp_path):
        _, train_op = build(bad=(1, 2))
        train(train_op, tmp_path, number_of_steps=3, trace_every_n_steps=1, on_nan='skip')
        assert list(tmp_path.glob('tf_trace-*.json'))

    def test_an_init_op_and_input_that_ends_the_training(self, tmp_path):
        _, train_op = build(end=4)
        ending = Ending()
        init_op = tf1.global_variables_initializer()
        assert np.isfinite(train(train_op, tmp_path, hooks=[ending], init_op=init_op))
        assert checkpoint_at(tmp_path) == (4, []) and ending.ends == 1

    def test_a_train_op_that_writes_nothing_or_only_counts_is_trained_as_slim_does(self):
        def run_and_stop_at_three(session, train_op, global_step, kwargs):
            session.run(train_op)
            return 0.0, session.run(global_step) == 3

        assert train(tf.constant(1.5), train_step_fn=lambda *args: (1.5, True)) == 1.5
        with tf.Graph().as_default():
            step = tf1.train.get_or_create_global_step()
            train(step.assign_add(1), number_of_steps=3, train_step_fn=run_and_stop_at_three)


def test_a_numeric_check_of_the_models_own_that_fails_is_an_incident():
    model = Linear(bad=(2,))
    x = tf.debugging.check_numerics(model.batches.x, 'bad pixels')
    loss = tf.reduce_mean(tf.matmul(x, model.weights))
    train_op = slimguard.create_train_op(loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(loss, on_nan='skip')
    train(train_op, hooks=[hook, Ending()])
    (incident,) = hook.incidents
    assert (incident.step, incident.action, incident.strategy) == (2, 'skip', 'check_numerics')
    assert 'bad pixels' in incident.reason


def test_inside_a_monitored_session_it_says_which_lines_to_change():
    model, train_op = build()
    hooks = [slimguard.NanLossHook(model.loss)]
    with tf1.train.MonitoredTrainingSession(hooks=hooks):
        with pytest.raises(RuntimeError, match='The hooks go into train') as caught:
            slimguard.train(train_op, None)
    assert 'slimguard.train(train_op, logdir, ..., hooks=hooks)' in str(caught.value)


@pytest.mark.full
def test_after_a_training_it_says_how_to_go_on(tmp_path):
    for steps in (2, 4):
        with tf.Graph().as_default():  # as the message advises
            model, train_op = build()
            train(train_op, tmp_path, steps)
            with pytest.raises(RuntimeError, match='finalized.*build the model again.*goes on'):
                train(train_op, tmp_path)
            with pytest.raises(RuntimeError, match='finalized.*no train op.*build the model'):
                slimguard.create_train_op(model.loss, model.optimizer)
        assert tf.train.latest_checkpoint(str(tmp_path)).endswith('-%d' % steps)


def test_a_training_that_was_complete_already_is_said_to_be(tmp_path):
    for steps, said in ((2, 0), (2, 1), (4, 0)):  # the second makes a third step, as slim does
        with tf.Graph().as_default(), LogLines() as lines:
            _, train_op = build()
            train(train_op, tmp_path, steps)
        told = [line for line in lines if 'complete already: its global step is 2' in line]
        assert len(told) == said, steps


def test_eager_mode_is_refused():
    script = (
        'import tensorflow as tf, slimguard\n'
        'tf.compat.v1.enable_eager_execution()\n'
        'loss = tf.constant(1.0)\n'
        'for call in (lambda: slimguard.create_train_op(loss, None),\n'
        '             lambda: slimguard.guard(loss),\n'
        '             lambda: slimguard.NanLossHook(loss),\n'
        '             lambda: slimguard.train(loss, None),\n'
        '             lambda: slimguard.train(None, None)):\n'
        '    try:\n'
        '        call()\n'
        '    except RuntimeError as error:\n'
        '        assert "disable_v2_behavior()" in str(error), error\n'
        '        print("refused")\n'
    )
    run = forked_python('-c', script)
    assert run.stdout.split() == ['refused'] * 5


def test_what_trains_nothing_is_told_of():
    """A loss was given as the train op, say. slim runs it, too, until somebody stops the loop."""
    model = Linear()
    stop = tf1.train.FinalOpsHook(None)
    stop.after_run = lambda run_context, run_values: run_context.request_stop()
    with LogLines() as lines:
        slimguard.train(model.loss, None, number_of_steps=3, hooks=[stop])
    (line,) = [line for line in lines if 'writes no variable' in line]
    assert "'%s'" % model.loss.name in line and 'nothing is trained' in line


def test_an_empty_logdir_is_none_and_that_is_said(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = Linear()
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    with LogLines() as lines:
        train_quietly(train_op, '')
    assert 'logdir is empty, so nothing is saved and nothing recorded.' in lines
    assert list(tmp_path.iterdir()) == []


def test_its_events_and_those_of_a_hook_are_in_two_files(tmp_path):
    # A file is named for the second and the host, and both files are begun in the same second.
    model, train_op = build()
    summary = tf1.summary.scalar('from_a_hook', model.loss, collections=[])
    hook = tf1.train.SummarySaverHook(1, output_dir=str(tmp_path), summary_op=summary)
    train(train_op, tmp_path, hooks=[hook])
    names = [path.name for path in tmp_path.glob('*tfevents*')]
    assert sorted(name.endswith('.train') for name in names) == [False, True]
    for name in names:
        assert list(tf1.train.summary_iterator(str(tmp_path / name)))


class TestEachBatchOnce:
    """Neither the gate, nor the hooks, nor an incident draws a batch of its own."""

    STEPS, BAD = 6, 2

    def train(self, x, feed=None):
        weights = tf1.get_variable('w', [1], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(weights * tf.cast(tf.math.log(x), tf.float32))
        train_op = slimguard.create_train_op(
            loss, tf1.train.GradientDescentOptimizer(0.1), check_numerics=False
        )
        seen = []

        def train_step_fn(session, op, global_step, kwargs):
            feed_dict = {x: feed(len(seen))} if feed else None
            loss_value, _, drawn = session.run([op, global_step, x], feed_dict)
            seen.append(float(drawn))
            return loss_value, len(seen) == self.STEPS

        hook = slimguard.NanLossHook(loss, on_nan='skip')
        slimguard.train(train_op, None, train_step_fn=train_step_fn, hooks=[hook])
        assert [incident.step for incident in hook.incidents] == [self.BAD]
        return seen

    def numbers(self):
        """1, 2, -1, 4, 5, 6: the logarithm of the third is NaN."""
        return [float(-1 if n == self.BAD else n + 1) for n in range(self.STEPS)]

    def test_of_a_dataset(self):
        dataset = tf1.data.Dataset.from_tensor_slices(np.array(self.numbers(), np.float32))
        x = tf1.data.make_one_shot_iterator(dataset).get_next()
        assert self.train(x) == self.numbers()

    def test_of_a_queue(self):
        queue = tf1.FIFOQueue(2, tf.float32, [[]])
        source = iter(self.numbers() + [1.0] * 100)
        enqueue = queue.enqueue(tf1.py_func(lambda: np.float32(next(source)), [], tf.float32))
        tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [enqueue]))
        assert self.train(queue.dequeue()) == self.numbers()

    def test_of_a_feed(self):
        x = tf1.placeholder(tf.float32, [])
        assert self.train(x, feed=lambda n: self.numbers()[n]) == self.numbers()


def convnet():
    """One NaN pixel, in the batch of step 4, that ReLU and max-pooling may drop."""
    tf1.set_random_seed(0)
    rng = np.random.RandomState(0)
    images = rng.randn(64, 32, 32, 3).astype(np.float32)
    images[37, 5, 5, 0] = np.nan
    labels = rng.randint(0, 10, 64)
    dataset = tf1.data.Dataset.from_tensor_slices((images, labels)).batch(8).repeat()
    net, labels = tf1.data.make_one_shot_iterator(dataset).get_next()
    for _ in range(3):
        net = slim.max_pool2d(slim.conv2d(net, 16, 3), 2)
    logits = slim.fully_connected(slim.flatten(net), 10, activation_fn=None)
    return tf1.losses.sparse_softmax_cross_entropy(labels, logits)


@pytest.mark.full
def test_a_nan_that_the_loss_never_shows_is_caught_when_it_comes():
    loss = convnet()
    train_op = slimguard.create_train_op(
        loss, tf1.train.MomentumOptimizer(0.01, 0.9), check_numerics=False
    )
    hook = slimguard.NanLossHook(loss, on_nan='skip')
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
        for _ in range(20):
            session.run(train_op)
            assert not non_finite(session.raw_session())
    # Step 4 is held, so the pixel comes again after seven more good steps.
    assert [incident.step for incident in hook.incidents] == [4, 11]
    assert 'gradient of Conv/weights' in hook.incidents[0].tensors
