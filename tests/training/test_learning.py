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


class Recording(tf1.train.SessionRunHook):
    """Writes down its calls, and the weights' state at each."""

    def __init__(self):
        self.calls = []

    def begin(self):
        self.calls.append('begin')
        self.weights = tf1.global_variables()

    def after_create_session(self, session, coord):
        assert isinstance(coord, tf1.train.Coordinator)
        self.calls.append('after_create_session')

    def before_run(self, run_context):
        self.calls.append('before_run')

    def after_run(self, run_context, run_values):
        self.calls.append('after_run')
        self.non_finite = non_finite(run_context.session)

    def end(self, session):
        self.calls.append('end')
        session.run(self.weights)


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

    @pytest.mark.parametrize(
        'make, error, words',
        [
            (lambda: None, TypeError, 'total_loss must be a tf.Tensor.* None'),
            (lambda: tf.constant([1.0]), ValueError, r'total_loss.*shape \(1,\)'),
            (lambda: tf.constant(1), ValueError, 'total_loss.*int32'),
        ],
    )
    def test_a_loss_that_is_no_floating_scalar_is_named(self, make, error, words):
        with pytest.raises(error, match=words):
            slimguard.create_train_op(make(), tf1.train.GradientDescentOptimizer(0.1))

    @pytest.mark.parametrize(
        'arguments, error, words',
        [
            ({'global_step': 3}, TypeError, 'global_step must be the variable .* None.* not 3'),
            ({'update_ops': 3}, TypeError, 'update_ops must be a list .* UPDATE_OPS; not 3'),
            ({'update_ops': 'all'}, TypeError, "update_ops must be a list .* not 'all'"),
            ({'variables_to_train': 1.5}, TypeError, 'variables_to_train must be a list .* 1.5'),
            ({'variables_to_train': []}, ValueError, 'variables_to_train is empty'),
            ({'clip_gradient_norm': '1'}, TypeError, "clip_gradient_norm must be .* not '1'"),
            ({'clip_gradient_norm': None}, TypeError, 'clip_gradient_norm must be .* 0 .* None'),
            ({'clip_gradient_norm': np.nan}, ValueError, 'clip_gradient_norm must .* not nan'),
            ({'clip_gradient_norm': np.inf}, ValueError, 'clip_gradient_norm must .* not inf'),
            ({'global_step': np.int64(0)}, TypeError, 'global_step must be the variable'),
            ({'check_numerics': 'no'}, ValueError, "check_numerics must be True .* not 'no'"),
            ({'gradient_multipliers': [1]}, TypeError, r'gradient_multipliers must .* not \[1\]'),
        ],
    )
    def test_an_argument_of_another_kind_is_named(self, arguments, error, words):
        model = Linear()
        with pytest.raises(error, match=words):
            slimguard.create_train_op(model.loss, model.optimizer, **arguments)

    def test_a_global_step_that_nobody_can_add_to_is_named(self):
        model = Linear()
        with pytest.raises(TypeError, match='global_step must be the variable .* not <tf.Tensor'):
            slimguard.create_train_op(model.loss, model.optimizer, global_step=tf.constant(0))

    @pytest.mark.parametrize('name', ['x', 3, 'w:0'])
    def test_a_multiplier_of_nothing_is_told(self, name):
        model = Linear()
        with LogLines() as lines:
            slimguard.create_train_op(model.loss, model.optimizer, gradient_multipliers={name: 2.0})
        (line,) = [each for each in lines if 'gradient_multipliers' in each]
        assert repr(name) in line and 'variable.op.name' in line

    @pytest.mark.parametrize(
        'arguments',
        [
            lambda model: {'gradient_multipliers': {model.weights: 2.0}},
            lambda model: {'gradient_multipliers': {model.weights.op.name: np.float32(2)}},
            lambda model: {
                'gradient_multipliers': {'frozen': 2.0},
                'variables_to_train': [model.weights],
                'update_ops': [tf1.get_variable('frozen', []).initializer],
            },
            lambda model: {'gradient_multipliers': {}, 'clip_gradient_norm': np.float32(0.5)},
            lambda model: {'clip_gradient_norm': -1},
            lambda model: {'check_numerics': np.bool_(True), 'clip_gradient_norm': np.int64(0)},
            lambda model: {'check_numerics': None, 'global_step': None},
            lambda model: {'global_step': tf1.train.get_or_create_global_step()},
        ],
    )
    def test_what_slim_takes_is_taken(self, arguments):
        model = Linear()
        slimguard.create_train_op(model.loss, model.optimizer, **arguments(model))

    @pytest.mark.parametrize('trained', [list, tuple])
    def test_any_kind_of_collection_is_taken(self, trained):
        model = Linear()
        slimguard.create_train_op(
            model.loss, model.optimizer, None, (), variables_to_train=trained([model.weights])
        )


@pytest.mark.parametrize('check_numerics', [True, False])
class TestPolicies:
    def test_raise_saves_the_last_good_state_first(self, check_numerics, tmp_path):
        _, train_op = build(check_numerics, bad=(3,))
        with pytest.raises(slimguard.NanLossError, match='global step 3'):
            train(train_op, tmp_path)
        assert checkpoint_at(tmp_path) == (3, [])

    def test_raise_is_the_default_and_needs_no_logdir(self, check_numerics):
        _, train_op = build(check_numerics, bad=(3,))
        with pytest.raises(slimguard.NanLossError):
            train(train_op)

    def test_stop_returns_the_last_finite_loss(self, check_numerics, tmp_path):
        model, train_op = build(check_numerics, bad=(3,))
        assert np.isfinite(train(train_op, tmp_path, on_nan='stop'))
        assert checkpoint_at(tmp_path) == (3, [])
        assert model.batches.drawn == 4

    def test_the_loss_of_a_held_step_is_not_returned(self, check_numerics):
        model, train_op = build(check_numerics, bad=(3,), value=1e6)
        assert train(train_op, on_nan='stop', max_loss=1e6) < 100

    def test_skip_goes_on(self, check_numerics, tmp_path):
        model, train_op = build(check_numerics, bad=(3, 4, 6))
        assert np.isfinite(train(train_op, tmp_path, on_nan='skip'))
        assert checkpoint_at(tmp_path) == (6, [])
        assert model.batches.drawn == 9

    def test_a_hook_decides(self, check_numerics):
        model, train_op = build(check_numerics, bad=(3,))
        hook = slimguard.NanLossHook(model.loss, on_nan='skip')
        train(train_op, hooks=[hook])
        (incident,) = hook.incidents
        assert (incident.step, incident.action) == (3, 'skip')
        assert incident.strategy == ('check_numerics' if check_numerics else 'hook')

    def test_handlers_that_users_have_catch_it(self, check_numerics):
        for handled in (tf1.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError):
            with tf.Graph().as_default():
                _, train_op = build(check_numerics, bad=(1,))
                with pytest.raises(handled):
                    train(train_op)

    def test_a_callable_sees_each_incident(self, check_numerics):
        _, train_op = build(check_numerics, bad=(1, 3))
        seen = []
        train(train_op, on_nan=lambda incident: seen.append(incident.step) or 'skip')
        assert seen == [1, 2]

    def test_a_train_op_built_by_hand_is_guarded_on_the_way_in(self, check_numerics):
        model = Linear(bad=(3,))
        loss = model.loss
        if check_numerics:
            loss = tf.debugging.check_numerics(loss, 'LossTensor is inf or nan')
        with tf.control_dependencies([model.minimize()]):
            train_op = tf.identity(loss)
        recording = Recording()
        train(train_op, on_nan='skip', hooks=[recording])
        assert model.batches.drawn == 7 and not recording.non_finite


class TestArguments:
    """What users hand to slim.learning.train still does what it did."""

    def test_train_step_fn_and_kwargs(self):
        model, train_op = build(bad=(2,))
        seen = []

        def train_step_fn(session, op, global_step, kwargs):
            session.run(model.step)  # a run of its own, which is no step
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
        recording = Recording()

        def train_step_fn(session, op, global_step, kwargs):
            session.run({'train': [given]})
            return session.run(model.step), model.batches.drawn == 5

        train(given, tmp_path, train_step_fn=train_step_fn, hooks=[recording], on_nan='skip')
        assert recording.calls.count('after_run') == 5 and not recording.non_finite
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

    def test_tracing_goes_on_after_a_step_that_was_held(self, tmp_path):
        _, train_op = build(bad=(1, 2))
        train(train_op, tmp_path, number_of_steps=3, trace_every_n_steps=1, on_nan='skip')
        assert list(tmp_path.glob('tf_trace-*.json'))

    def test_input_that_ends_ends_the_training(self, tmp_path):
        model, train_op = build(end=4)
        recording = Recording()
        assert np.isfinite(train(train_op, tmp_path, hooks=[recording]))
        assert checkpoint_at(tmp_path) == (4, [])
        assert recording.calls.count('end') == 1

    def test_a_train_op_that_writes_nothing_is_trained_as_slim_does(self):
        assert train(tf.constant(1.5), train_step_fn=lambda *args: (1.5, True)) == 1.5

    def test_a_train_op_that_only_counts(self):
        step = tf1.train.get_or_create_global_step()
        train(step.assign_add(1), number_of_steps=3, train_step_fn=run_and_stop_at_three)


def run_and_stop_at_three(session, train_op, global_step, kwargs):
    session.run(train_op)
    return 0.0, session.run(global_step) == 3


class TestHooks:
    def test_they_are_called_once_for_each_step(self):
        model, train_op = build(bad=(2,))
        recording = Recording()
        train(train_op, number_of_steps=3, hooks=[recording], on_nan='skip')
        steps = ['before_run', 'after_run'] * 4
        assert recording.calls == ['begin', 'after_create_session'] + steps + ['end']
        assert model.batches.drawn == 4

    def test_request_stop_stops(self):
        model, train_op = build()
        train(train_op, hooks=[tf1.train.StopAtStepHook(num_steps=2)])
        assert model.batches.drawn == 2

    def test_final_ops(self):
        model, train_op = build()
        final = tf1.train.FinalOpsHook(model.step)
        train(train_op, hooks=[final])
        assert final.final_ops_values == 6

    def test_tensors_of_two_hooks_and_of_the_caller_come_from_one_run(self):
        model, train_op = build()
        values = []

        class Fetching(tf1.train.SessionRunHook):
            def before_run(self, run_context):
                return tf1.train.SessionRunArgs({'x': model.batches.x})

            def after_run(self, run_context, run_values):
                values.append(run_values.results['x'])

        train(train_op, hooks=[Fetching(), Fetching()])
        assert model.batches.drawn == 6
        assert all(np.array_equal(a, b) for a, b in zip(values[::2], values[1::2]))

    def test_a_tensor_that_two_feed_is_an_error(self):
        model, train_op = build()

        class Feeding(tf1.train.SessionRunHook):
            def before_run(self, run_context):
                feed = {model.batches.x: np.zeros([4, 3], np.float32)}
                return tf1.train.SessionRunArgs(None, feed_dict=feed)

        with pytest.raises(RuntimeError, match='Same tensor is fed by two hooks'):
            train(train_op, hooks=[Feeding(), Feeding()])


class TestNumericChecksOfTheModel:
    """`tf.debugging.check_numerics` that users have in their models raises by itself."""

    def build(self, check, bad=(2,)):
        model = Linear(bad)
        x = check(model.batches.x)
        loss = tf.reduce_mean(tf.matmul(x, model.weights))
        return model, slimguard.create_train_op(loss, model.optimizer, check_numerics=False)

    def test_its_failure_is_an_incident(self):
        model, train_op = self.build(lambda x: tf.debugging.check_numerics(x, 'bad pixels'))
        hook = slimguard.NanLossHook(model.loss, on_nan='skip')
        recording = Recording()
        train(train_op, hooks=[hook, recording])
        (incident,) = hook.incidents
        assert (incident.step, incident.action, incident.strategy) == (2, 'skip', 'check_numerics')
        assert 'bad pixels' in incident.reason
        assert not recording.non_finite

    def test_without_a_policy_it_raises_our_error(self):
        _, train_op = self.build(lambda x: tf.debugging.check_numerics(x, 'bad pixels'))
        with pytest.raises(slimguard.NanLossError, match='bad pixels'):
            train(train_op)

    def test_any_other_invalid_argument_passes_through(self):
        def check(x):
            with tf.control_dependencies([tf1.assert_less(x, 1e6, message='too bright')]):
                return tf.identity(x)

        model = Linear(bad=(2,), value=1e9)
        loss = tf.reduce_mean(tf.matmul(check(model.batches.x), model.weights))
        train_op = slimguard.create_train_op(loss, model.optimizer, check_numerics=False)
        with pytest.raises(tf.errors.InvalidArgumentError, match='too bright') as caught:
            train(train_op, on_nan='skip')
        assert not isinstance(caught.value, slimguard.NanLossError)


class TestMaxLoss:
    def test_a_larger_loss_is_an_incident(self):
        model, train_op = build(bad=(3,), value=1e6)
        hook = slimguard.NanLossHook(model.loss, on_nan='skip')
        train(train_op, hooks=[hook], max_loss=1e6)
        assert [i.reason for i in hook.incidents] == ['above max_loss: loss (Mean)']

    def test_a_hook_that_disagrees_is_an_error(self):
        model, train_op = build()
        hook = slimguard.NanLossHook(model.loss, max_loss=5.0)
        with pytest.raises(ValueError, match='max_loss=6.0 disagrees.*5.0'):
            train(train_op, hooks=[hook], max_loss=6.0)


class TestErrors:
    def test_no_train_op(self):
        with pytest.raises(ValueError, match='train_op cannot be None'):
            train(None)

    def test_arguments_in_the_wrong_order(self, tmp_path):
        model, _ = build()
        for logdir in (model.loss, 0):
            with pytest.raises(TypeError, match=r'logdir must be a path \(str, bytes or'):
                slimguard.train(str(tmp_path), logdir)

    def test_a_train_op_that_is_none(self):
        with pytest.raises(TypeError, match="train_op must be a tf.Tensor.* not 'train'"):
            train('train')

    def test_a_train_op_of_another_graph(self):
        with tf.Graph().as_default():
            _, train_op = build()
        with pytest.raises(ValueError, match='another graph.*graph=...'):
            train(train_op)

    def test_an_unknown_policy(self):
        _, train_op = build()
        with pytest.raises(ValueError, match="unknown policy on_nan='retry'"):
            train(train_op, on_nan='retry')

    def test_a_policy_that_is_left_out_of_a_chain(self):
        _, train_op = build()
        with pytest.raises(ValueError, match="unknown policy on_nan='' in 'skip,,raise'"):
            train(train_op, on_nan='skip,,raise')

    @pytest.mark.parametrize(
        ('arguments', 'error', 'said'),
        [
            ({'progress': 'yes'}, ValueError, "progress must be True or False, not 'yes'"),
            ({'ends_job': 2}, ValueError, 'ends_job must be True or False, not 2'),
            ({'number_of_steps': 'x'}, ValueError, "number_of_steps must be a number.* not 'x'"),
            ({'saver': ['w']}, TypeError, r"saver must be a tf.compat.v1.train.Saver.* \['w'\]"),
            ({'hooks': [1]}, TypeError, 'hooks must be tf.train.SessionRunHooks; 1 is none'),
            (
                {'hooks': [slimguard.NanLossHook]},
                TypeError,
                r'hooks has the class NanLossHook; make a hook of it: NanLossHook\(...\)',
            ),
        ],
        ids=['progress', 'ends_job', 'number_of_steps', 'saver', 'a number', 'a class'],
    )
    def test_what_is_of_another_kind(self, arguments, error, said):
        _, train_op = build()
        with pytest.raises(error, match=said):
            train(train_op, **arguments)

    def test_a_hook_says_what_is_of_another_kind(self):
        model, _ = build()
        for name in ('progress', 'ends_job', 'fail_on_nan_loss'):
            with pytest.raises(ValueError, match=name + " must be True or False, not 'x'"):
                slimguard.NanLossHook(model.loss, **{name: 'x'})

    def test_a_policy_and_a_hook_that_disagree(self):
        model, train_op = build()
        hook = slimguard.NanLossHook(model.loss, fail_on_nan_loss=False)
        with pytest.raises(ValueError, match="on_nan='skip' disagrees with the NanLossHook"):
            train(train_op, hooks=[hook], on_nan='skip')
        train(train_op, hooks=[hook], on_nan='stop')

    def test_inside_a_monitored_session_it_says_which_lines_to_change(self):
        model, train_op = build()
        hooks = [slimguard.NanLossHook(model.loss)]
        with tf1.train.MonitoredTrainingSession(hooks=hooks):
            with pytest.raises(RuntimeError, match='The hooks go into train') as caught:
                slimguard.train(train_op, None)
        assert 'slimguard.train(train_op, logdir, ..., hooks=hooks)' in str(caught.value)

    def test_after_a_training_it_says_how_to_go_on(self, tmp_path):
        for steps in (2, 4):
            with tf.Graph().as_default():  # as the messages say
                model, train_op = build()
                train(train_op, tmp_path, steps)
                with pytest.raises(RuntimeError, match='finalized.*build the model again.*goes on'):
                    train(train_op, tmp_path)
                with pytest.raises(RuntimeError, match='finalized.*no train op.*build the model'):
                    slimguard.create_train_op(model.loss, model.optimizer)
            assert tf.train.latest_checkpoint(str(tmp_path)).endswith('-%d' % steps)

    def test_eager_mode(self):
        script = (
            'import tensorflow as tf, slimguard\n'
            'tf.compat.v1.enable_eager_execution()\n'
            'loss = tf.constant(1.0)\n'
            'for call in (lambda: slimguard.create_train_op(loss, None),\n'
            '             lambda: slimguard.guard(loss),\n'
            '             lambda: slimguard.NanLossHook(loss),\n'
            '             lambda: slimguard.train(loss, None)):\n'
            '    try:\n'
            '        call()\n'
            '    except RuntimeError as error:\n'
            '        assert "disable_eager_execution" in str(error), error\n'
            '        print("refused")\n'
        )
        run = forked_python('-c', script)
        assert run.stdout.split() == ['refused'] * 4


def test_the_loss_that_slim_logs_and_the_incident_are_both_there():
    _, train_op = build(bad=(1,))
    with LogLines() as lines:
        slimguard.train(train_op, None, number_of_steps=3, log_every_n_steps=1, on_nan='skip')
    assert sum('global step' in line and 'sec/step' in line for line in lines) == 4
    assert sum(line.startswith('slimguard: incident 1 at global step 1') for line in lines) == 1


def test_what_trains_nothing_is_told_of():
    """As a loss in the train op's place: slim runs that too, until somebody stops it."""
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
    assert 'slimguard: logdir is empty, so nothing is saved and nothing recorded.' in lines
    assert list(tmp_path.iterdir()) == []


def test_a_bad_batch_that_the_forward_pass_wrote_down_is_skipped_and_put_back(tmp_path):
    model = Linear(bad=(2,))
    mean = tf1.get_variable('mean', [3], initializer=tf1.zeros_initializer(), trainable=False)
    with tf.control_dependencies([mean.assign(tf.reduce_mean(model.batches.x, 0))]):
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    train_quietly(train_op, tmp_path, number_of_steps=4, hooks=[hook])
    (incident,) = hook.incidents
    assert incident.action == 'skip' and not incident.state_lost
    assert checkpoint_at(tmp_path) == (4, [])


@pytest.mark.parametrize('optimizer', ['adam', None, tf.keras.optimizers.SGD])
def test_an_optimizer_that_is_none_of_tensorflow_1_is_refused_with_the_cure(optimizer):
    model = Linear()
    with pytest.raises(TypeError, match=r'must be a tf.compat.v1.train.Optimizer, such as'):
        slimguard.create_train_op(model.loss, optimizer)


def test_its_events_and_those_of_a_hook_are_in_two_files(tmp_path):
    # The name of such a file tells the second and the host; both are begun in one second.
    model, train_op = build()
    summary = tf1.summary.scalar('from_a_hook', model.loss, collections=[])
    hook = tf1.train.SummarySaverHook(1, output_dir=str(tmp_path), summary_op=summary)
    train(train_op, tmp_path, hooks=[hook])
    names = [path.name for path in tmp_path.glob('*tfevents*')]
    assert sorted(name.endswith('.train') for name in names) == [False, True]
    for name in names:
        assert list(tf1.train.summary_iterator(str(tmp_path / name)))
