"""Steps that are prepared once and run by a handle: callers see no difference to `session.run`."""

import functools
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.training.prepared_runs import MOST_KINDS, PreparedRuns
from tests.helpers.models import state
from tests.helpers.session_cases import ERRORS, FEEDS, FETCHES, Fed, X, described

tf1 = tf.compat.v1


class Guarded(Fed):
    def __init__(self):
        Fed.__init__(self)
        self.train_op = slimguard.guard(self.train_op, loss=self.loss)


def session_with(*hooks):
    return tf1.train.MonitoredSession(tf1.train.ChiefSessionCreator(), hooks)


def raw(session):
    """TensorFlow's own session within a MonitoredSession."""
    return session._tf_sess()


def results(make_hook, cases):
    """The values of three steps of each case, and the state after them."""
    with tf.Graph().as_default():
        model, told = Guarded(), []
        with session_with(make_hook(model.loss)) as session:
            for fetches, feed in cases:
                for _ in range(3):
                    told.append(described(session.run(fetches(model), feed(model))))
            return told, state(raw(session))


def errors(make_hook):
    """The type, the message and the op of each error, and the state after all of them."""
    with tf.Graph().as_default():
        model, told = Guarded(), []
        with session_with(make_hook(model.loss)) as session:
            session.run(model.train_op, {model.x: X})
            for case in ERRORS:
                fetches, feed = ERRORS[case](model)
                with pytest.raises(Exception) as caught:
                    session.run(fetches, feed)
                op = getattr(caught.value, 'op', None)
                said = str(caught.value).splitlines()[0].replace(repr(fetches), '')
                told.append((case, type(caught.value), said, op and op.name))
            return told, state(raw(session))


@pytest.mark.full
def test_values_and_errors_are_those_under_a_hook_of_tensorflow():
    fetched = [(FETCHES[name], FEEDS['numbers']) for name in FETCHES]
    fed = [(FETCHES['a list'], FEEDS[name]) for name in FEEDS]
    for cases in (fetched, fed):
        theirs = results(tf1.train.NanTensorHook, cases)
        assert results(slimguard.NanLossHook, cases) == theirs
    assert errors(slimguard.NanLossHook) == errors(tf1.train.NanTensorHook)


@pytest.fixture
def runs(monkeypatch):
    """A list that collects the fetches of each `session.run` during the test."""
    asked = []
    of_session = tf1.Session._run

    def run(session, handle, fetches, *args):
        asked.append(fetches)
        return of_session(session, handle, fetches, *args)

    monkeypatch.setattr(tf1.Session, '_run', run, raising=False)
    return asked


def steps_among(runs):
    return [fetches for fetches in runs if type(fetches) is dict and 'caller' in fetches]


class Tracing(tf1.train.SessionRunHook):
    """Asks for a trace of every second step, as a ProfilerHook does."""

    def __init__(self):
        self.steps, self.traced = 0, []

    def before_run(self, run_context):
        self.steps += 1
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        return tf1.train.SessionRunArgs(None, options=None if self.steps % 2 else options)

    def after_run(self, run_context, run_values):
        self.traced.append(bool(run_values.run_metadata.step_stats.dev_stats))


def test_no_step_goes_through_the_session(runs):
    model = Guarded()
    with session_with(slimguard.NanLossHook(model.loss)) as session:
        for _ in range(3):
            session.run(model.train_op, {model.x: X})
        assert raw(session).run(model.step) == 3
    assert not steps_among(runs)


def test_nor_in_a_session_that_is_watched(runs):
    model = Guarded()
    with slimguard.watch(tf1.Session(), on_nan='skip') as session:
        session.run(tf1.global_variables_initializer())
        for bad in (1.0, np.nan, 1.0):
            loss = session.run([model.train_op, model.loss], {model.x: bad * X})[1]
            assert np.isnan(loss) == np.isnan(bad)
        assert session.run(model.step) == 2
    assert not steps_among(runs)


@pytest.mark.full
def test_who_asks_for_a_trace_gets_it(runs):
    model, tracing = Guarded(), Tracing()
    with session_with(slimguard.NanLossHook(model.loss), tracing) as session:
        for _ in range(4):
            session.run(model.train_op, {model.x: X})
    assert tracing.traced == [False, True, False, True]
    assert len(steps_among(runs)) == 2


@pytest.mark.full
def test_a_run_that_somebody_puts_in_place_of_the_classs_is_called(monkeypatch):
    model, profiled = Guarded(), []
    of_class = tf1.Session.run

    def run(session, fetches, *args, **kwargs):
        profiled.append(fetches)
        return of_class(session, fetches, *args, **kwargs)

    with session_with(slimguard.NanLossHook(model.loss)) as session:
        session.run(model.train_op, {model.x: X})
        monkeypatch.setattr(tf1.Session, 'run', run)
        session.run(model.train_op, {model.x: X})
        assert len(profiled) == 1
        monkeypatch.undo()
        session.run(model.train_op, {model.x: X})
    assert len(profiled) == 1


def test_a_run_of_the_sessions_own_is_left_alone(runs):
    model = Guarded()

    class Session(tf1.Session):
        pass

    class Creator(tf1.train.SessionCreator):
        def create_session(self):
            session = Session()
            session.run(tf1.global_variables_initializer())
            return session

    with tf1.train.MonitoredSession(Creator(), [slimguard.NanLossHook(model.loss)]) as session:
        session.run(model.train_op, {model.x: X})
        assert 'run' not in vars(raw(session))
    assert len(steps_among(runs)) == 1


@pytest.mark.full
def test_more_kinds_of_steps_than_are_prepared_run_as_ever(runs):
    model = Guarded()
    more = [tf.constant(number) for number in range(MOST_KINDS + 2)]
    with session_with(slimguard.NanLossHook(model.loss)) as session:
        for number, each in enumerate(more):
            assert session.run([model.train_op, each], {model.x: X})[1] == number
    assert len(steps_among(runs)) == 2


def test_the_session_has_its_own_run_again_once_it_is_closed():
    model = Guarded()
    with session_with(slimguard.NanLossHook(model.loss)) as session:
        session.run(model.train_op, {model.x: X})
        inner = raw(session)
        assert 'run' in vars(inner)
    assert 'run' not in vars(inner)
    with pytest.raises(RuntimeError, match='Attempted to use a closed Session'):
        inner.run(model.step)


@pytest.mark.full
def test_a_session_that_nobody_has_any_more_is_freed():
    model = Guarded()
    session = session_with(slimguard.NanLossHook(model.loss))
    session.run(model.train_op, {model.x: X})
    there = weakref.ref(raw(session))
    del session
    gc.collect()
    assert there() is None


def prepared(session, fetches):
    """Returns a function that runs `fetches` by a prepared call, or fails the test."""
    return functools.partial(PreparedRuns(pytest.fail).run, session, fetches)


# Ways to fetch a variable; most hand out its memory, on one version or another.
WAYS = {
    'itself': lambda v: v.op.outputs[0] if v.op.type == 'VariableV2' else v.value(),
    'identity': tf.identity,
    'value': lambda v: v.value(),
    'read_value': lambda v: v.read_value(),
    'reshape': lambda v: tf.reshape(v, [-1]),
    'expand_dims': lambda v: tf.expand_dims(v, 0),
    'rows': lambda v: tf.slice(v, [0, 0], [32, 16]),
    'one of two': lambda v: tf.split(v, 2)[1],
    'in a loop': lambda v: tf1.while_loop(
        lambda n, x: n < 2, lambda n, x: (n + 1, tf.identity(v)), [0, tf.zeros_like(v)]
    )[1],
    'in a branch': lambda v: tf1.cond(tf.constant(True), lambda: tf.identity(v), lambda: v - 1.0),
    'of unknown shape': lambda v: tf1.placeholder_with_default(tf.identity(v), None),
    'update': lambda v: v.assign_add(tf.ones_like(v)),
    'shape': tf.shape,
    'sum': tf.reduce_sum,
}


@pytest.mark.full
@pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])
def test_what_was_fetched_stays_as_it_was(use_resource):
    for name, way in WAYS.items():
        with tf.Graph().as_default(), tf1.variable_scope('m', use_resource=use_resource):
            variable = tf1.get_variable('v', [64, 16], initializer=tf1.ones_initializer())
            update = variable.assign_add(tf.ones_like(variable))
            with tf.control_dependencies([update]):
                fetch = way(variable)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                run = prepared(session, [fetch, update.op])
                got = [run()[0] for _ in range(3)]
                then = [np.array(value) for value in got]
                run()
                session.run(variable.initializer)
        np.testing.assert_array_equal(got, then, name)
        assert type(got[0]) is (np.float32 if name == 'sum' else np.ndarray), name


# Tensors whose values a script may overwrite, though the next run reads the same memory.
SOURCES = {
    'a variable': lambda: tf1.get_variable('v', [64], initializer=tf1.zeros_initializer()),
    'a resource': lambda: tf1.get_variable(
        'v', [64], initializer=tf1.zeros_initializer(), use_resource=True
    ).value(),
    'a constant': lambda: tf.constant(np.zeros(64, np.float32)),
    'a batch': lambda: tf1.data.make_one_shot_iterator(
        tf.data.Dataset.from_tensors(np.zeros(64, np.float32)).cache().repeat()
    ).get_next(),
}


def test_what_the_script_writes_to_it_stays_there():
    for name, source in SOURCES.items():
        with tf.Graph().as_default():
            fetch = tf.reshape(source(), [8, 8])
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                run = prepared(session, fetch)
                for _ in range(3):
                    value = run()
                    assert not value.any(), name
                    value += 7


def test_what_the_script_writes_to_a_fed_array_is_no_value_of_the_step_before():
    x = tf1.placeholder(tf.float32, [64])
    with tf1.Session() as session:
        run = prepared(session, tf.identity(x))
        for start in range(32):  # TensorFlow does not copy an array whose address is aligned
            array = np.zeros(96, np.float32)[start : start + 64]
            value = run({x: array})
            array += 7
            assert not value.any()
