"""slimguard.train makes the steps of slim's loop, and calls hooks as a MonitoredSession does."""

import collections
import functools
import re
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.training import slim_loop
from slimguard.training.training import Training
from tests.helpers.models import Counted, Linear, LogLines, checkpoint_at, train_quietly

tf1 = tf.compat.v1
slim = compat.import_slim()

STEPS = 4
Args = tf1.train.SessionRunArgs
Pair = collections.namedtuple('Pair', ['one', 'two'])


def said(value):
    """A value as data that can be compared: types, shapes, contents."""
    if isinstance(value, dict):
        return type(value).__name__, [(str(name), said(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [said(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value).__name__, value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, tf1.RunOptions):
        return value.SerializeToString()
    if isinstance(value, tf1.RunMetadata):
        return bool(value.step_stats.dev_stats), len(value.partition_graphs)
    return type(value).__name__, getattr(value, 'name', value)


class Recording(tf1.train.SessionRunHook):
    """Writes down its calls with their arguments, and acts in them as a test wants it to.

    Args:
      trace: the list to write to; several hooks may share it.
      asks: called with the number of a run, returns the result of `before_run`.
      does: functions of a call's arguments, by the call's name, or its name and number from 0 on.
      name: the hook's name in the trace.
    """

    def __init__(self, trace, asks=None, does=None, name='hook'):
        self._trace = trace
        self._asks = asks or (lambda run: None)
        self._does = does or {}
        self._name = name
        self._counts = collections.Counter()

    def _note(self, call, what, *arguments):
        self._trace.append((self._name, call, what))
        number = self._counts[call]
        self._counts[call] += 1
        for key in (call, (call, number)):
            if key in self._does:
                self._does[key](*arguments)
        return number

    def begin(self):
        self._note('begin', tf1.get_default_graph().finalized)

    def after_create_session(self, session, coord):
        assert type(session) is tf1.Session and isinstance(coord, tf1.train.Coordinator)
        assert tf1.get_default_graph() is session.graph
        self._session = session
        self._note('after_create_session', session.graph.finalized, session, coord)

    def before_run(self, run_context):
        assert run_context.session is self._session
        what = said(run_context.original_args), run_context.stop_requested
        return self._asks(self._note('before_run', what, run_context))

    def after_run(self, run_context, run_values):
        assert run_context.session is self._session
        assert isinstance(run_values, tf1.train.SessionRunValues)
        what = [said(value) for value in run_values], run_context.stop_requested
        self._note('after_run', what, run_context, run_values)

    def end(self, session):
        assert session is self._session
        step = session.run(tf1.train.get_global_step(session.graph))
        self._note('end', int(step), session)


def in_monitored_session(train_op, hooks):
    step = tf1.train.get_global_step()
    with tf1.train.MonitoredSession(hooks=hooks) as session:
        while not session.should_stop():
            session.run([train_op, step])
            if session.run_step_fn(lambda step_context: step_context.session.run(step)) >= STEPS:
                break


def in_train(train_op, hooks, **kwargs):
    slimguard.train(
        train_op, None, number_of_steps=STEPS, log_every_n_steps=0, hooks=hooks, **kwargs
    )


def in_train_by_the_users_step(train_op, hooks):
    def train_step(session, train_op, global_step, train_step_kwargs):
        session.run(global_step)  # not a step, so no hook is called
        return slim.learning.train_step(session, train_op, global_step, train_step_kwargs)

    in_train(train_op, hooks, train_step_fn=train_step)


def in_watch(train_op, hooks):
    step = tf1.train.get_global_step()
    with slimguard.watch(tf1.Session(), hooks=hooks) as session:
        session.run(tf1.global_variables_initializer())
        while not session.should_stop():
            session.run([train_op, step])
            if session.run(step) >= STEPS:
                break


def trace_of(loop, case):
    """The calls in a loop of its own, and how the loop ended."""
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        trace = []
        model = case.get('model', Linear)()
        hooks = case['hooks'](model, trace)
        hooks.insert(1, slimguard.NanLossHook(model.loss, on_nan=case.get('on_nan')))
        train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
        ending = None
        try:
            loop(train_op, hooks)
        except Exception as error:  # any error is part of the comparison
            ending = type(error).__name__, str(error).splitlines()[0]
        return trace, ending


def one(**kwargs):
    return {'hooks': lambda model, trace: [Recording(trace, **kwargs)]}


def two(**kwargs):
    """Two hooks, the first of which does something."""

    def hooks(model, trace):
        return [Recording(trace, name='first', **kwargs), Recording(trace, name='second')]

    return {'hooks': hooks}


def fail(error=ValueError, *arguments):
    def do(*_):
        raise error(*(arguments or ('as wanted',)))

    return do


def stop(run_context, *_):
    run_context.request_stop()


def with_model(case, make, **more):
    return dict(case, model=make, **more)


def asserting():
    model = Linear(bad=(2,), value=1e9)
    with tf.control_dependencies([tf1.assert_less(model.batches.x, 1e6, message='too bright')]):
        model.loss = tf.identity(model.loss)
    return model


def overlapping(model, trace):
    square = tf.square(model.loss, name='square')
    nothing = tf.no_op()
    sparse = tf.SparseTensor([[0, 1]], [2.5], [1, 2])

    def first(run):
        return Args({'x': model.batches.x, 'more': [model.loss, (square, nothing)]})

    def second(run):
        if run == 1:
            return None
        if run == 2:
            return Args([sparse, 'square:0'])
        return Args(Pair(model.loss, collections.OrderedDict([('b', square), ('a', [])])))

    return [Recording(trace, first, name='first'), Recording(trace, second, name='second')]


def feeding(model, trace):
    gain = tf1.placeholder_with_default([1.0], [1], name='gain')
    model.loss *= gain[0]
    values = [np.float32([3.0]), [2.0], np.float64([7.0]), None]

    doubled = 2.0 * gain

    def feed(run):
        x = {model.batches.x: np.full([4, 3], run, np.float32)}
        return Args([model.loss, doubled], feed_dict=x)

    def feed_more(run):
        return None if values[run] is None else Args(doubled, feed_dict={gain: values[run]})

    return [Recording(trace, feed, name='first'), Recording(trace, feed_more, name='second')]


def clashing(model, trace):
    x = model.batches.x

    def feed(run):
        return Args(None, feed_dict={x: np.zeros([4, 3], np.float32)}) if run == 1 else None

    return [Recording(trace, feed), Recording(trace, feed)]


def what_cannot_be_fed(value):
    def hooks(model, trace):
        return [Recording(trace, lambda run: Args(None, feed_dict={model.batches.x: value}))]

    return {'hooks': hooks}


def what_cannot_be_fetched(fetches):
    return one(asks=lambda run: Args(fetches) if run == 1 else None)


def optional(model, trace):
    full = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, timeout_in_ms=10**6)
    graphs = tf1.RunOptions(output_partition_graphs=True, timeout_in_ms=10**5)
    first = [None, Args(model.loss, options=full), Args(None, options=tf1.RunOptions()), None]
    second = [None, Args(model.loss, options=graphs), Args(model.loss), Args(None, options=graphs)]
    return [
        Recording(trace, lambda run: first[run], name='first'),
        Recording(trace, lambda run: second[run], name='second'),
    ]


def queued(error_at, error):
    """A model whose input comes from a queue that a queue runner fills, and fails to fill."""

    def make():
        model = Linear()
        numbers = iter(range(100))

        def number():
            at = next(numbers)
            if at == error_at:
                raise error
            return np.float32(at)

        queue = tf1.FIFOQueue(8, tf.float32, [[]])
        enqueue = queue.enqueue(tf1.py_func(number, [], tf.float32, stateful=True))
        tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [enqueue]))
        model.number, model.is_closed = queue.dequeue(), queue.is_closed()
        model.loss *= 1.0 + model.number
        return model

    return make


def drawing(model, trace):
    def draw(session, coord):
        options = tf1.RunOptions(timeout_in_ms=60000)
        trace.append(said(session.run(model.number, options=options)))

    return [Recording(trace, does={'after_create_session': draw})]


END = fail(tf.errors.OutOfRangeError, None, None, 'as wanted')

LOSS = fail(tf.errors.AbortedError, None, None, 'as wanted')


CASES = {
    'an incident and skip': with_model(two(), lambda: Linear(bad=(1, 2)), on_nan='skip'),
    'an incident and raise': with_model(two(), lambda: Linear(bad=(2,)), on_nan='raise'),
    'an incident and stop': with_model(two(), lambda: Linear(bad=(2,)), on_nan='stop'),
    'request_stop in before_run': two(does={('before_run', 2): stop}),
    'request_stop in after_run': two(does={('after_run', 1): stop}),
    'the end of the input': with_model(two(), lambda: Linear(end=3)),
    'an error in the step': with_model(two(), asserting),
    'an error in begin': two(does={'begin': fail()}),
    'an error in after_create_session': two(does={'after_create_session': fail()}),
    'an error in before_run': two(does={('before_run', 1): fail()}),
    'an error in after_run': two(does={('after_run', 1): fail()}),
    'an error in end': two(does={'end': fail()}),
    'OutOfRangeError in end': two(does={'end': END}),
    'StopIteration in before_run': two(does={('before_run', 1): fail(StopIteration)}),
    'OutOfRangeError in after_run': two(does={('after_run', 1): END}),
    'a session that is lost': two(does={('before_run', 2): LOSS}),
    'overlapping fetches': {'hooks': overlapping},
    'feeds': {'hooks': feeding},
    'feeds that clash': {'hooks': clashing},
    'a feed of the wrong shape': what_cannot_be_fed(np.zeros([4, 2], np.float32)),
    'a fetch that does not exist': what_cannot_be_fetched('nowhere:0'),
    'run options': {'hooks': optional},
    'the coordinator is stopped before the first step': two(
        does={'after_create_session': lambda session, coord: coord.request_stop()}
    ),
    'a queue that runs before the first step': with_model({'hooks': drawing}, queued(50, None)),
    'a queue that is closed': with_model(two(), queued(2, StopIteration())),
    'a queue runner that fails': with_model(
        two(does={'after_create_session': lambda session, coord: coord.wait_for_stop(60)}),
        queued(5, NotImplementedError('as wanted')),
    ),
}


BY_THE_USERS_STEP = {
    'an incident and raise',
    'request_stop in after_run',
    'the end of the input',
    'an error in before_run',
    'a session that is lost',
    'overlapping fetches',
    'feeds',
    'run options',
}


@pytest.mark.full
@pytest.mark.parametrize('name', CASES, ids=[name.replace(' ', '_') for name in CASES])
def test_the_same_calls_as_in_a_monitored_session(name):
    case = CASES[name]
    trace, ending = trace_of(in_monitored_session, case)
    assert len(trace) > 1 or ending is not None
    assert trace_of(in_train, case) == (trace, ending)
    if name in BY_THE_USERS_STEP:
        assert trace_of(in_train_by_the_users_step, case) == (trace, ending)
    if 'queue' in name or 'is lost' in name:
        return  # a plain session starts no queue runners, and nobody makes it again after an error
    watched, watched_ending = trace_of(in_watch, case)
    # The graph of a watched session need not be finalized.
    expected = [
        call[:2] + (False,) if call[1] == 'after_create_session' else call for call in trace
    ]
    assert watched == expected
    assert watched_ending == ending


@pytest.mark.full
@pytest.mark.parametrize('name', ['gain', 'x'])
def test_feeds_of_the_caller_and_of_a_hook(name):
    """Feeds of two tensors are merged; two feeds of one are the error of a MonitoredSession."""
    x = np.full([4, 3], 2.0, np.float32)

    def hooks(model, trace):
        model.x = tf.identity(model.batches.x, name='x')
        gain = tf1.placeholder_with_default(1.0, [], name='gain')
        model.loss = gain * tf.reduce_mean(tf.square(tf.matmul(model.x, model.weights) - 1.0))
        feeds = {'gain': {gain: 3.0}, 'x': {model.x: x}}[name]
        return [Recording(trace, lambda run: Args(model.loss, feed_dict=feeds))]

    def in_monitored_session(train_op, hooks):
        with tf1.train.MonitoredSession(hooks=hooks) as session:
            session.run(train_op, {'x:0': x} if name == 'gain' else {fed(): x})

    def in_train(train_op, hooks):
        def train_step(session, train_op, global_step, train_step_kwargs):
            return session.run(train_op, {'x:0': x} if name == 'gain' else {fed(): x}), True

        slimguard.train(train_op, None, train_step_fn=train_step, hooks=hooks)

    def fed():
        return tf1.get_default_graph().get_tensor_by_name('x:0')

    expected = trace_of(in_monitored_session, {'hooks': hooks})
    assert (expected[1] is None) == (name == 'gain')
    assert trace_of(in_train, {'hooks': hooks}) == expected


class TestHooksOfTensorFlow:
    """TensorFlow's own hooks work under slimguard.train."""

    def train(self, hooks, number_of_steps=4):
        """Trains a linear model, with the hooks that `hooks` makes for it."""
        model = Linear()
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        hooks = hooks(model) + [slimguard.NanLossHook(model.loss)]
        return model, train_quietly(train_op, '', number_of_steps, hooks=hooks)

    @pytest.mark.full
    def test_those_that_save_count_log_and_stop(self, tmp_path):
        calls = []

        class Listening(tf1.train.CheckpointSaverListener):
            def begin(self):
                calls.append('begin')

            def before_save(self, session, step):
                calls.append(('before_save', step))

            def after_save(self, session, step):
                calls.append(('after_save', step))

            def end(self, session, step):
                calls.append(('end', step))

        def hooks(model):
            final.append(tf1.train.FinalOpsHook([model.step, model.weights]))
            summary = tf1.summary.scalar('loss', model.loss)
            return final + [
                tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[Listening()]),
                tf1.train.SummarySaverHook(2, output_dir=str(tmp_path), summary_op=summary),
                tf1.train.StepCounterHook(every_n_steps=2, output_dir=str(tmp_path)),
                tf1.train.LoggingTensorHook({'loss': model.loss}, every_n_iter=2),
                tf1.train.GlobalStepWaiterHook(wait_until_step=0),
                tf1.train.StopAtStepHook(num_steps=4),
            ]

        final = []
        with LogLines() as lines:
            model, _ = self.train(hooks, number_of_steps=9)
        assert model.batches.drawn == 4
        saves = [(call, step) for step in (0, 2, 4) for call in ('before_save', 'after_save')]
        assert calls == ['begin'] + saves + [('end', 4)]
        assert checkpoint_at(tmp_path) == (4, [])
        assert sum(line.startswith('loss = ') for line in lines) == 2
        step, weights = final[0].final_ops_values
        assert step == 4 and weights.shape == (3, 1)
        tf1.summary.FileWriterCache.clear()  # writes its buffers
        (path,) = tmp_path.glob('events*')
        told = [
            (value.tag, event.step)
            for event in tf1.train.summary_iterator(str(path))
            for value in event.summary.value
        ]
        assert [tag for tag, _ in told].count('global_step/sec') == 1
        first, second = [step for tag, step in told if tag == 'loss']
        assert second - first == 2

    @pytest.mark.parametrize('fails', [True, False])
    def test_a_nan_tensor_hook(self, fails):
        """It watches another tensor than the loss, which no gate checks."""
        drawn = []

        def hooks(model):
            drawn.append(model.batches)
            number = tf.cast(
                tf1.py_func(lambda x: drawn[0].drawn, [model.batches.x], tf.int64), 'float'
            )
            return [tf1.train.NanTensorHook(tf.math.log(2.5 - number), fail_on_nan_loss=fails)]

        if fails:
            with pytest.raises(tf1.train.NanLossDuringTrainingError):
                self.train(hooks)
        else:
            self.train(hooks)
        assert drawn[0].drawn == 3

    def test_a_feed_fn_hook(self):
        model, loss = self.train(
            lambda model: [tf1.train.FeedFnHook(lambda: {model.batches.x: [[0.0, 0.0, 0.0]] * 4})]
        )
        assert loss == 1.0 and model.batches.drawn == 0


def build(library=slimguard, **kwargs):
    model = Linear(**kwargs)
    return model, library.create_train_op(model.loss, model.optimizer, check_numerics=False)


def train(train_op, logdir=None, number_of_steps=4, **kwargs):
    kwargs.setdefault('log_every_n_steps', 0)
    return slimguard.train(
        train_op, logdir and str(logdir), number_of_steps=number_of_steps, **kwargs
    )


class Asking(tf1.train.SessionRunHook):
    """Fetches something in each run, and keeps the values."""

    def __init__(self, ask):
        self._ask = ask
        self.values = []

    def before_run(self, run_context):
        return self._ask(len(self.values))

    def after_run(self, run_context, run_values):
        self.values.append(run_values.results)


@pytest.fixture
def fast_steps(monkeypatch):
    """The loss and the global step of each step that was done in one run."""
    done = []
    run = slim_loop.StepRunner._run_once

    def spy(self, *args):
        loss, should_stop = run(self, *args)
        done.append((loss, self.step_now(None)))
        return loss, should_stop

    monkeypatch.setattr(slim_loop.StepRunner, '_run_once', spy)
    return done


class TestInOneCall:
    def test_it_is_taken_and_asks_the_session_for_nothing_else(self, fast_steps, monkeypatch):
        model, train_op = build()
        runs = []
        run = tf1.Session._run

        def spy(self, handle, fetches, *rest):
            if fast_steps and len(fast_steps) < 10:
                runs.append(fetches)
            return run(self, handle, fetches, *rest)

        monkeypatch.setattr(tf1.Session, '_run', spy)
        hooks = [slimguard.NanLossHook(model.loss)]
        loss = train(train_op, number_of_steps=10, hooks=hooks)
        assert [step for _, step in fast_steps] == list(range(1, 11)) and not runs
        assert loss == fast_steps[-1][0] and type(loss) is np.float32

    def test_it_logs_and_stops_as_slim_does(self, fast_steps):
        said = []
        for library in (slim.learning, slimguard):
            with tf.Graph().as_default(), LogLines() as lines:
                tf1.set_random_seed(1)
                model, train_op = build(library)
                loss = library.train(train_op, None, number_of_steps=5, log_every_n_steps=2)
            told = [line for line in lines if not line.startswith('Wrapping session')]  # ours
            said.append((told, loss, model.batches.drawn))
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

    @pytest.mark.full
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

    @pytest.mark.full
    def test_going_on_from_a_checkpoint_it_stops_where_slim_stops(self, tmp_path):
        for _ in range(2):
            with tf.Graph().as_default():
                model, train_op = build()
                # No saves by the clock: now and then one of them would be the last.
                train(train_op, tmp_path, save_interval_secs=0)
        assert model.batches.drawn == 1 and checkpoint_at(tmp_path) == (5, [])

    @pytest.mark.full
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
        """This train op returns another value than the loss."""
        model = Linear(bad=(2,), value=1e9)
        with tf.control_dependencies([model.minimize()]):
            train_op = tf.constant(7.0)
        train_op = slimguard.guard(train_op, loss=model.loss, max_loss=1e6)
        hook = slimguard.NanLossHook(model.loss, on_nan='skip')
        assert train(train_op, hooks=[hook]) == 7.0
        assert hook.incidents[0].loss > 1e6 and len(fast_steps) == 5


class TestNotInOneCall:
    """Steps with other arguments, sessions or hooks than slim's default are not done in one run."""

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

        train(train_op, session_wrapper=wrap)
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

    @pytest.mark.full
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
        make_runner = functools.partial(slim_loop.StepRunner, step, None)
        steps = slim_loop.SlimLoop(make_runner, None, [hook], hook, train_op, Training())
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
