"""The steps of slimguard.train: the fast one, the user's own, and how they end."""

import re
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.training import fast_step, loop
from tests.helpers.models import Counted, Linear, LogLines, checkpoint_at

tf1 = tf.compat.v1
slim = compat.import_slim()
Args = tf1.train.SessionRunArgs


def build(library=slimguard, **kwargs):
    model = Linear(**kwargs)
    return model, library.create_train_op(model.loss, model.optimizer, check_numerics=False)


def train(train_op, logdir=None, number_of_steps=4, **kwargs):
    kwargs.setdefault('log_every_n_steps', 0)
    return slimguard.train(
        train_op, logdir and str(logdir), number_of_steps=number_of_steps, **kwargs
    )


class Asking(tf1.train.SessionRunHook):
    """Asks for something in each run, and keeps what it gets."""

    def __init__(self, ask):
        self._ask = ask
        self.values = []

    def before_run(self, run_context):
        return self._ask(len(self.values))

    def after_run(self, run_context, run_values):
        self.values.append(run_values.results)


@pytest.fixture
def fast_steps(monkeypatch):
    """What the fast steps of a test came to."""
    done = []
    run = fast_step.FastStep.run

    def spy(self):
        done.append(run(self))
        return done[-1]

    monkeypatch.setattr(fast_step.FastStep, 'run', spy)
    return done


class TestFastStep:
    def test_it_is_taken_and_knows_the_step_after_the_update(self, fast_steps):
        model, train_op = build()
        loss = train(train_op, hooks=[slimguard.NanLossHook(model.loss)])
        assert [done.step for done in fast_steps] == [1, 2, 3, 4]
        assert loss == fast_steps[-1].loss and type(loss) is np.float32

    def test_it_asks_the_session_for_nothing_else(self, fast_steps, monkeypatch):
        _, train_op = build()
        runs = []
        run = tf1.Session._run

        def spy(self, handle, fetches, *rest):
            if fast_steps and len(fast_steps) < 10:
                runs.append(fetches)
            return run(self, handle, fetches, *rest)

        monkeypatch.setattr(tf1.Session, '_run', spy)
        train(train_op, number_of_steps=10)
        assert len(fast_steps) == 10 and not runs

    def test_it_logs_and_stops_as_slim_does(self, fast_steps):
        said = []
        for library in (slim.learning, slimguard):
            with tf.Graph().as_default(), LogLines() as lines:
                tf1.set_random_seed(1)
                model, train_op = build(library)
                loss = library.train(train_op, None, number_of_steps=5, log_every_n_steps=2)
            said.append((list(lines), loss, model.batches.drawn))
        (theirs, their_loss, their_draws), (ours, our_loss, our_draws) = said
        assert (our_loss, our_draws) == (their_loss, their_draws)
        assert len(ours) == len(theirs) and len(fast_steps) == 5
        pattern = r'global step (\d+): (loss = \S+) \(\d+\.\d{3} sec/step\)'
        for our_line, their_line in zip(ours, theirs):
            mine, other = re.match(pattern, our_line), re.match(pattern, their_line)
            if mine is None:
                assert our_line.split(':')[0] == their_line.split(':')[0]
                continue
            assert mine[2] == other[2]
            # slim reads the step beside the update: as it was, or as it is.
            assert int(mine[1]) - int(other[1]) in (0, 1)
        assert [line for line in ours if line.startswith('global step 4: loss')]

    def test_it_traces_as_slim_does(self, tmp_path, fast_steps):
        found = []
        for library in (slim.learning, slimguard):
            with tf.Graph().as_default():
                _, train_op = build(library)
                logdir = tmp_path / library.__name__
                library.train(train_op, str(logdir), number_of_steps=5, trace_every_n_steps=2)
                (events,) = logdir.glob('events*')
                tags = [
                    event.tagged_run_metadata.tag
                    for event in tf1.train.summary_iterator(str(events))
                    if event.HasField('tagged_run_metadata')
                ]
                traces = sorted(path.stat().st_size > 100 for path in logdir.glob('tf_trace-*'))
                found.append((len(tags), traces))
        assert found[0] == found[1] == (3, [True] * 3)
        assert len(fast_steps) == 2

    def test_going_on_from_a_checkpoint_it_stops_where_slim_stops(self, tmp_path):
        for _ in range(2):
            with tf.Graph().as_default():
                model, train_op = build()
                # A save by the clock would come last, now and then.
                train(train_op, tmp_path, save_interval_secs=0)
        assert model.batches.drawn == 1 and checkpoint_at(tmp_path) == (5, [])

    def test_many_kinds_of_runs(self, fast_steps):
        """More than are prepared, and a list that is new each time."""
        model, train_op = build()
        asking = Asking(lambda run: Args([model.loss] * (run % 25)))
        train(train_op, number_of_steps=60, hooks=[asking])
        assert [len(values) for values in asking.values] == [run % 25 for run in range(60)]
        losses = [done.loss for done in fast_steps]
        assert all(value == losses[run] for run in range(60) for value in asking.values[run])

    def test_things_to_fetch_that_are_new_each_time(self):
        class Named:
            def __init__(self, tensor):
                self._tensor = tensor

            def _as_graph_element(self):  # as variables have it
                return self._tensor

        model, train_op = build()
        numbers = [tf.constant(float(number)) for number in range(5)]
        asking = Asking(lambda run: Args(Named(numbers[run % 5])))
        train(train_op, number_of_steps=30, hooks=[asking])
        assert asking.values == [run % 5 for run in range(30)]

    def test_a_fetch_that_is_fed_is_what_was_fed(self):
        model, train_op = build()
        x = np.full([4, 3], 7.0, np.float32)
        asking = Asking(lambda run: Args(model.batches.x, feed_dict={model.batches.x: x}))
        train(train_op, hooks=[asking])
        assert np.array_equal(asking.values, [x] * 4) and model.batches.drawn == 0

    def test_max_loss_may_change_on_the_way(self):
        model, train_op = build(bad=(2, 3), value=1e4)
        hook = slimguard.NanLossHook(model.loss, on_nan='skip', max_loss=1e6)

        class Raising(tf1.train.SessionRunHook):
            def after_run(self, run_context, run_values):
                if len(hook.incidents) == 1:
                    hook.max_loss = 1e12

        train(train_op, number_of_steps=3, hooks=[hook, Raising()])
        assert len(hook.incidents) == 1 and model.batches.drawn == 4

    def test_the_loss_of_an_incident_is_the_loss(self, fast_steps):
        """The value of this train op is something else."""
        model = Linear(bad=(2,), value=1e9)
        with tf.control_dependencies([model.minimize()]):
            train_op = tf.constant(7.0)
        train_op = slimguard.guard(train_op, loss=model.loss, max_loss=1e6)
        hook = slimguard.NanLossHook(model.loss, on_nan='skip')
        assert train(train_op, hooks=[hook]) == 7.0
        assert hook.incidents[0].loss > 1e6 and len(fast_steps) == 5

    def test_an_error_in_the_step_names_its_op_as_a_session_does(self, fast_steps):
        model, train_op = build()
        check = tf.debugging.check_numerics(tf.math.log(-1.0 + 0.0 * model.loss), 'below')
        asking = Asking(lambda run: Args(check))
        with pytest.raises(slimguard.NanLossError, match='not finite: Log .below'):
            train(train_op, hooks=[asking])


class TestNotFast:
    """Where what was asked for is not slim's own step, it is done as it was asked for."""

    def test_arguments_for_the_step(self, fast_steps):
        model, train_op = build()
        stop = tf.greater_equal(model.step, 3)
        train(train_op, train_step_kwargs={'should_stop': stop})
        assert model.batches.drawn == 3 and not fast_steps

    def test_a_session_wrapper(self, fast_steps):
        _, train_op = build()
        wrapped = []

        def wrap(session):
            return Counted(session, wrapped)

        with LogLines() as lines:
            train(train_op, session_wrapper=wrap)
        (said,) = [line for line in lines if line.startswith('Wrapping session')]
        assert said == 'Wrapping session with wrapper function: %s' % wrap
        assert len(wrapped) >= 4 and not fast_steps

    def test_a_session_whose_run_somebody_replaced(self, fast_steps, monkeypatch):
        _, train_op = build()
        run = tf1.Session.run
        runs = []

        def counted(self, fetches, *args, **kwargs):
            runs.append(fetches)
            return run(self, fetches, *args, **kwargs)

        monkeypatch.setattr(tf1.Session, 'run', counted)
        train(train_op)
        assert len(runs) >= 4 and not fast_steps

    def test_another_global_step_than_the_graphs(self, fast_steps):
        model = Linear()
        mine = tf1.get_variable(
            'mine', [], tf.int64, trainable=False, initializer=tf1.zeros_initializer()
        )
        train_op = slimguard.create_train_op(model.loss, model.optimizer, global_step=mine)
        train(train_op, global_step=mine)
        assert model.batches.drawn == 4 and not fast_steps

    def test_a_watcher_with_calls_of_its_own(self, fast_steps):
        calls = []

        class Mine(slimguard.NanLossHook):
            def before_run(self, run_context):
                calls.append('before_run')
                return slimguard.NanLossHook.before_run(self, run_context)

            def after_run(self, run_context, run_values):
                calls.append('after_run')
                slimguard.NanLossHook.after_run(self, run_context, run_values)

        model, train_op = build(bad=(1,))
        hooks = [Mine(model.loss, on_nan='skip'), slimguard.NanLossHook(model.loss, on_nan='skip')]
        train(train_op, hooks=hooks)
        assert calls == ['before_run', 'after_run'] * 5
        assert [len(hook.incidents) for hook in hooks] == [1, 1] and len(fast_steps) == 5


class TestEnding:
    def test_threads_of_the_coordinator_are_joined(self):
        threads = []

        class Threaded(tf1.train.SessionRunHook):
            def after_create_session(self, session, coord):
                def work():
                    coord.wait_for_stop()
                    while not session.run(ended):
                        pass

                threads.append(threading.Thread(target=work))
                coord.register_thread(threads[0])
                threads[0].start()

            def end(self, session):
                assert threads[0].is_alive()
                session.run(end)

        _, train_op = build()
        ended = tf1.get_variable('ended', [], tf.bool, tf1.zeros_initializer(), trainable=False)
        end = ended.assign(True)
        train(train_op, hooks=[Threaded()])
        assert not threads[0].is_alive()

    def test_request_stop_ends_after_the_step_that_runs(self, monkeypatch, tmp_path):
        model, train_op = build()
        made = []
        make = loop.HookedSteps.__init__
        monkeypatch.setattr(
            loop.HookedSteps,
            '__init__',
            lambda self, *a, **k: made.append(self) or make(self, *a, **k),
        )

        class Signalled(tf1.train.SessionRunHook):
            ended = 0

            def before_run(self, run_context):
                if model.batches.drawn == 2:
                    made[0].request_stop()

            def end(self, session):
                self.ended += 1

        hook = Signalled()
        train(train_op, tmp_path, hooks=[hook], save_interval_secs=0)
        assert model.batches.drawn == 3 and hook.ended == 1
        assert checkpoint_at(tmp_path) == (3, [])

    @pytest.mark.parametrize('own_step', [False, True])
    def test_an_interrupt_saves_and_leaves(self, own_step, tmp_path):
        class Interrupting(tf1.train.SessionRunHook):
            def after_run(self, run_context, run_values):
                if model.batches.drawn == 3:
                    raise KeyboardInterrupt()

        model, train_op = build()
        kwargs = {'train_step_fn': lambda *args: slim.learning.train_step(*args)}
        with pytest.raises(KeyboardInterrupt):
            train(
                train_op,
                tmp_path,
                hooks=[Interrupting()],
                save_interval_secs=0,
                **(kwargs if own_step else {}),
            )
        assert checkpoint_at(tmp_path) == (3, [])

    @pytest.mark.parametrize('when', ['in the step', 'after an incident', 'alone'])
    def test_a_lost_server_is_answered_with_a_new_session(self, when):
        class Losing(slimguard.NanLossHook):
            def on_nan_loss(self, run_context, incident):
                raise lost

        def step(session, *args):
            if when == 'after an incident':
                session.run(check)
            raise lost

        lost = tf.errors.UnavailableError(None, None, 'a server is gone')
        model, train_op = build()
        check = tf.debugging.check_numerics(tf.math.log(-1.0), 'below')
        hook = Losing(model.loss)
        steps = loop.HookedSteps(step, None, [hook], hook, train_op, None)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            hooked = steps.wrap(session)
            hook.job = None if when == 'alone' else types.SimpleNamespace(worker='worker 1')
            error = tf.errors.UnavailableError if when == 'alone' else tf.errors.AbortedError
            with pytest.raises(error, match='a server is gone'):
                steps.step(hooked, train_op, model.step, {})
        assert hook.incident_count == (when == 'after an incident')

    def test_without_a_step_there_is_no_loss(self):
        class Stopping(tf1.train.SessionRunHook):
            def after_create_session(self, session, coord):
                coord.request_stop()

        model, train_op = build()
        assert train(train_op, hooks=[Stopping()]) is None and model.batches.drawn == 0

    def test_without_a_supervisor_there_is_a_coordinator_still(self):
        """Where slim.learning.train was replaced by somebody else's."""
        model, train_op = build()
        hook = slimguard.NanLossHook(model.loss)
        steps = loop.HookedSteps(slim.learning.train_step, None, [hook], hook, train_op, None)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            hooked = steps.wrap(session)
            assert not steps.step(hooked, train_op, model.step, {})[1]
            steps.coordinator.request_stop()
            assert steps.step(hooked, train_op, model.step, {})[1]
        assert model.batches.drawn == 1
