"""A hook sees under slimguard.train what it sees in a MonitoredSession."""

import collections
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from tests.helpers.models import Linear

tf1 = tf.compat.v1
slim = compat.import_slim()

STEPS = 4
Args = tf1.train.SessionRunArgs
Pair = collections.namedtuple('Pair', ['one', 'two'])


def said(value):
    """A value in words that can be compared: types, shapes, contents."""
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
    """Writes down its calls with all that they are given, and does what a test wants it to.

    Args:
      trace: where to write; several hooks may share it.
      asks: from the number of a run to what `before_run` returns.
      does: by a call's name, or its name and number (0 is the first), what to do with its
        arguments.
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
        session.run(global_step)  # no step, so no hook is called
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
        except Exception as error:  # to be compared, whatever it is
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


def stop_by_a_thread(error=None):
    """Has a thread of the coordinator stop the training."""

    def start(session, coord):
        def work():
            with coord.stop_on_exception():
                if error is not None:
                    raise error
                coord.request_stop()

        thread = threading.Thread(target=work)
        coord.register_thread(thread)
        thread.start()
        thread.join()

    return start


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


def waiting(model, trace):
    def wait(session, coord):
        while not session.run(model.is_closed):
            pass

    return [Recording(trace, does={'after_create_session': wait})]


END = fail(tf.errors.OutOfRangeError, None, None, 'as wanted')
LOSS = fail(tf.errors.AbortedError, None, None, 'as wanted')

CASES = {
    'the number of steps': two(),
    'request_stop in before_run': two(does={('before_run', 2): stop}),
    'request_stop in after_run': two(does={('after_run', 1): stop}),
    'the end of the input': with_model(two(), lambda: Linear(end=3)),
    'an error in the step': with_model(two(), asserting),
    'an error in begin': two(does={'begin': fail()}),
    'an error in after_create_session': two(does={'after_create_session': fail()}),
    'an error in before_run': two(does={('before_run', 1): fail()}),
    'an error in after_run': two(does={('after_run', 1): fail()}),
    'an error in end': two(does={'end': fail()}),
    'OutOfRangeError in after_create_session': two(does={'after_create_session': END}),
    'OutOfRangeError in end': two(does={'end': END}),
    'StopIteration in before_run': two(does={('before_run', 1): fail(StopIteration)}),
    'StopIteration in after_run': two(does={('after_run', 1): fail(StopIteration)}),
    'OutOfRangeError in after_run': two(does={('after_run', 1): END}),
    'a session that is lost': two(does={('before_run', 2): LOSS}),
    'a session that is lost at once': two(does={('after_create_session', 0): LOSS}),
    'overlapping fetches': {'hooks': overlapping},
    'feeds': {'hooks': feeding},
    'feeds that clash': {'hooks': clashing},
    'a feed of the wrong shape': what_cannot_be_fed(np.zeros([4, 2], np.float32)),
    'a feed of the wrong type': what_cannot_be_fed('words'),
    'a fetch that does not exist': what_cannot_be_fetched('nowhere:0'),
    'a fetch that is none': what_cannot_be_fetched({'a': None}),
    'run options': {'hooks': optional},
    'the coordinator is stopped before the first step': two(
        does={'after_create_session': lambda session, coord: coord.request_stop()}
    ),
    'the coordinator is stopped by a thread': two(
        does={'after_create_session': stop_by_a_thread()}
    ),
    'a thread of the coordinator fails': two(
        does={'after_create_session': stop_by_a_thread(ValueError('as wanted'))}
    ),
    'a queue that runs before the first step': with_model({'hooks': drawing}, queued(50, None)),
    'a queue that is closed': with_model(two(), queued(2, StopIteration())),
    'a queue that is closed before the first step': with_model(
        {'hooks': waiting}, queued(2, StopIteration())
    ),
    'a queue runner that fails': with_model(
        two(does={'after_create_session': lambda session, coord: coord.wait_for_stop(60)}),
        queued(5, NotImplementedError('as wanted')),
    ),
    'an incident and raise': with_model(two(), lambda: Linear(bad=(2,)), on_nan='raise'),
    'an incident and stop': with_model(two(), lambda: Linear(bad=(2,)), on_nan='stop'),
    'an incident and skip': with_model(two(), lambda: Linear(bad=(1, 2)), on_nan='skip'),
    'incidents that are not in a row': with_model(
        two(), lambda: Linear(bad=(1, 3)), on_nan=slimguard.Skip(1)
    ),
    'an incident in the first step': with_model(two(), lambda: Linear(bad=(0,)), on_nan='stop'),
    'an incident and a ladder': with_model(
        two(), lambda: Linear(bad=(1, 2, 3)), on_nan=[slimguard.Skip(2), lambda incident: 'stop']
    ),
}


@pytest.mark.parametrize('name', CASES, ids=[name.replace(' ', '_') for name in CASES])
def test_the_same_calls_as_in_a_monitored_session(name):
    case = CASES[name]
    trace, ending = trace_of(in_monitored_session, case)
    assert len(trace) > 1 or ending is not None
    assert trace_of(in_train, case) == (trace, ending)
    assert trace_of(in_train_by_the_users_step, case) == (trace, ending)
    if 'queue' in name or 'is lost' in name:
        return  # a plain session starts no queue runners, and is not made again
    watched, watched_ending = trace_of(in_watch, case)
    # Its graph need not be finalized, and what leaves a "with" is not swallowed.
    expected = [
        call[:2] + (False,) if call[1] == 'after_create_session' else call for call in trace
    ]
    assert watched == expected
    assert watched_ending == ending


@pytest.mark.parametrize('name', ['gain', 'x'])
def test_feeds_of_the_caller_and_of_a_hook(name):
    """Of two tensors they go together; of one they are the error of a MonitoredSession."""
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
