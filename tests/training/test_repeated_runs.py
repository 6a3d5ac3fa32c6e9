"""A MonitoredSession that a hook of ours watches runs its steps by prepared calls."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.training.prepared_call import MOST_CALLS
from tests.helpers.models import records_in, state
from tests.helpers.session_cases import ERRORS, FEEDS, FETCHES, Fed, X, described

tf1 = tf.compat.v1


class Guarded(Fed):
    def __init__(self):
        Fed.__init__(self)
        self.train_op = slimguard.guard(self.train_op, loss=self.loss)


def session_with(*hooks):
    return tf1.train.MonitoredSession(tf1.train.ChiefSessionCreator(), hooks)


def raw(session):
    """TensorFlow's session, in which a MonitoredSession runs."""
    return session._tf_sess()


def results(make_hook, fetches, feed):
    """The values of three steps, and the state after them."""
    with tf.Graph().as_default():
        model = Guarded()
        with session_with(make_hook(model.loss)) as session:
            values = [session.run(fetches(model), feed(model)) for _ in range(3)]
            return described((values, state(raw(session))))


def error_of(make_hook, case):
    with tf.Graph().as_default():
        model = Guarded()
        fetches, feed = ERRORS[case](model)
        with session_with(make_hook(model.loss)) as session:
            session.run(model.train_op, {model.x: X})
            try:
                session.run(fetches, feed)
            except Exception as error:
                op = getattr(error, 'op', None)
                said = str(error).splitlines()[0].replace(repr(fetches), '')
                return type(error), said, op and op.name, state(raw(session))
    raise AssertionError('no error')


class TestAsUnderAHookOfTensorFlow:
    @pytest.mark.parametrize('name', FETCHES)
    def test_values_of_what_is_fetched(self, name):
        asked = FETCHES[name], FEEDS['numbers']
        assert results(slimguard.NanLossHook, *asked) == results(tf1.train.NanTensorHook, *asked)

    @pytest.mark.parametrize('name', FEEDS)
    def test_values_of_what_is_fed(self, name):
        asked = FETCHES['a list'], FEEDS[name]
        assert results(slimguard.NanLossHook, *asked) == results(tf1.train.NanTensorHook, *asked)

    @pytest.mark.parametrize('case', ERRORS)
    def test_errors(self, case):
        assert error_of(slimguard.NanLossHook, case) == error_of(tf1.train.NanTensorHook, case)


@pytest.fixture
def runs(monkeypatch):
    """What TensorFlow's sessions are asked for meanwhile: a list of fetches."""
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


def test_who_asks_for_a_trace_gets_it(runs):
    model, tracing = Guarded(), Tracing()
    with session_with(slimguard.NanLossHook(model.loss), tracing) as session:
        for _ in range(4):
            session.run(model.train_op, {model.x: X})
    assert tracing.traced == [False, True, False, True]
    assert len(steps_among(runs)) == 2


def test_a_bad_step_is_held_and_on_record(tmp_path):
    model = Guarded()
    hook = slimguard.NanLossHook(model.loss, on_nan='skip', logdir=tmp_path)
    with session_with(hook) as session:
        session.run([model.train_op, model.loss], {model.x: X})
        before = state(raw(session))
        _, loss = session.run([model.train_op, model.loss], {model.x: X * np.nan})
        assert np.isnan(loss)
        assert state(raw(session)) == before
    assert [(r['step'], r['action']) for r in records_in(tmp_path)] == [(1, 'skip')]


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


def test_more_kinds_of_steps_than_are_prepared_run_as_ever(runs):
    model = Guarded()
    more = [tf.constant(number) for number in range(MOST_CALLS + 2)]
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


def test_a_session_that_nobody_has_any_more_is_freed():
    model = Guarded()
    session = session_with(slimguard.NanLossHook(model.loss))
    session.run(model.train_op, {model.x: X})
    there = weakref.ref(raw(session))
    del session
    gc.collect()
    assert there() is None
