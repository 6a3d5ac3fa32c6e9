"""Histogram summaries of a bad batch: TensorFlow's raise, and would end the training."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.gate.histograms import leave_out_bad_values
from tests.helpers.models import Linear, non_finite, state, train_quietly

tf1 = tf.compat.v1
slim = compat.import_slim()

BAD = [np.nan, 1.0, np.inf, -2.5, -np.inf]


def drawn(summary, feed=None):
    """The histogram that running `summary` gives."""
    with tf1.Session() as session:
        (value,) = tf1.Summary.FromString(session.run(summary, feed)).value
    return value.histo


def test_a_histogram_shows_what_is_finite():
    shown = tf1.summary.histogram('shown', tf.constant(BAD))
    finite = tf1.summary.histogram('finite', tf.constant([1.0, -2.5]))
    with pytest.raises(tf.errors.InvalidArgumentError, match='in summary histogram for: shown'):
        drawn(shown)
    leave_out_bad_values(shown.graph)
    assert drawn(shown) == drawn(finite)
    assert drawn(shown).num == 2


@pytest.mark.parametrize('shape, ops', [([len(BAD)], 2), ([len(BAD), 1], 3)])
def test_a_histogram_takes_few_ops(shape, ops):
    for number in range(5):
        tf1.summary.histogram('h%d' % number, tf.constant(BAD, shape=shape))
    graph = tf1.get_default_graph()
    before = graph.version
    leave_out_bad_values(graph)
    assert graph.version - before == 5 * ops


@pytest.mark.parametrize('use_resource', [False, True])
def test_a_histogram_of_a_variable_shows_what_is_finite(use_resource):
    w = tf1.get_variable('w', initializer=tf.constant(BAD), use_resource=use_resource)
    shown = tf1.summary.histogram('shown', w)
    leave_out_bad_values(shown.graph)
    with tf1.Session() as session:
        session.run(w.initializer)
        (value,) = tf1.Summary.FromString(session.run(shown)).value
    assert (value.histo.num, value.histo.min, value.histo.max) == (2, -2.5, 1)


def test_where_nothing_is_finite_it_shows_nothing():
    shown = tf1.summary.histogram('shown', tf.fill([3, 2], np.float32('nan')))
    leave_out_bad_values(shown.graph)
    assert drawn(shown).num == 0


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_finite_values_give_the_same_histogram(dtype):
    values = np.random.RandomState(0).randn(7, 5).astype(np.float32)
    values[:2] = 0
    fed = tf1.placeholder(tf.float32)  # of unknown rank
    summary = tf1.summary.histogram('h', tf.cast(fed, dtype))
    before = drawn(summary, {fed: values})
    leave_out_bad_values(summary.graph)
    assert drawn(summary, {fed: values}) == before
    assert before.num == 35


def test_what_cannot_raise_is_left_alone():
    whole = tf1.summary.histogram('whole', tf.constant([1, 2]))
    ready = tf1.summary.histogram('ready', tf.constant(BAD))
    leave_out_bad_values(whole.graph)
    before = whole.graph.as_graph_def()
    leave_out_bad_values(whole.graph)
    assert ready.graph.as_graph_def() == before
    assert drawn(whole).num == 2


def test_a_histogram_on_a_branch_or_in_a_loop(control_flow_v1):
    made = []

    def draw():
        made.append(tf1.summary.histogram('branch', tf.constant(BAD)))
        return made[0]

    on_branch = tf.cond(tf1.placeholder_with_default(True, []), draw, lambda: tf.constant(''))

    def body(i, _):
        return i + 1, tf1.summary.histogram('loop', tf.constant(BAD) * tf.cast(i, tf.float32))

    _, in_loop = tf.while_loop(lambda i, _: i < 3, body, [0, ''])
    leave_out_bad_values(on_branch.graph)
    assert drawn(on_branch).num == 2
    assert drawn(in_loop).max == 2


def test_what_a_session_may_have_seen_stays_as_it_is(graph):
    tf1.summary.histogram('seen', tf.constant(BAD))
    before = graph.as_graph_def()
    with tf1.Session():
        leave_out_bad_values(graph)
    graph.finalize()
    leave_out_bad_values(graph)
    assert graph.as_graph_def() == before


class Step:
    """A training whose batch is bad at draw 2, with a histogram of the batch."""

    def __init__(self, create_train_op=slimguard.create_train_op, **kwargs):
        self.model = Linear(bad=(2,))
        self.hook = slimguard.NanLossHook(self.model.loss, on_nan='skip')
        self.train_op = create_train_op(
            self.model.loss, self.model.optimizer, check_numerics=False, **kwargs
        )
        self.summary = tf1.summary.histogram('activations', self.model.batches.x)
        self.written = Written()
        self.summaries = tf1.train.SummarySaverHook(
            1, summary_writer=self.written, summary_op=self.summary
        )


class Written:
    """A summary writer that keeps how many values each histogram has."""

    def __init__(self):
        self.numbers = []
        self.is_written = threading.Event()

    def add_summary(self, summary, global_step=None):
        summary = tf1.Summary.FromString(summary) if isinstance(summary, bytes) else summary
        self.numbers += [v.histo.num for v in summary.value if v.HasField('histo')]
        if self.numbers:
            self.is_written.set()

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def test_train_goes_on_where_a_hook_draws_a_histogram_of_a_bad_batch(tmp_path):
    step = Step()
    train_quietly(step.train_op, tmp_path, hooks=[step.hook, step.summaries])
    assert step.written.numbers == [12, 12, 11, 12, 12, 12, 12]
    assert [incident.step for incident in step.hook.incidents] == [2]


def test_a_monitored_session_goes_on():
    step = Step()
    hooks = [step.hook, step.summaries, tf1.train.StopAtStepHook(4)]
    with tf1.train.MonitoredSession(hooks=hooks) as session:
        while not session.should_stop():
            session.run(step.train_op)
    assert step.written.numbers == [12, 12, 11, 12, 12]
    assert [incident.step for incident in step.hook.incidents] == [2]


class WaitsFor(tf1.train.SessionRunHook):
    def __init__(self, event):
        self._event = event

    def after_run(self, run_context, run_values):
        assert self._event.wait(30), 'no summary was written'


def test_the_thread_of_the_supervisor_does_not_end_the_training(tmp_path):
    step, written = Step(), Written()
    tf1.summary.histogram('always_bad', tf.constant(BAD))
    loss = slimguard.train(
        step.train_op,
        str(tmp_path),
        number_of_steps=3,
        log_every_n_steps=0,
        save_summaries_secs=1,
        summary_writer=written,
        hooks=[step.hook, WaitsFor(written.is_written)],
    )
    assert np.isfinite(loss)
    assert 2 in written.numbers


def slims_own_instrumented(*args, **kwargs):
    with slimguard.instrument(on_nan='skip'):
        return slim.learning.create_train_op(*args, **kwargs)


@pytest.mark.parametrize('create', [slimguard.create_train_op, slims_own_instrumented])
def test_the_histograms_of_gradients_in_a_plain_session(create):
    step = Step(create, summarize_gradients=True)
    summaries = [s for s in tf1.get_collection(tf1.GraphKeys.SUMMARIES) if 'gradient' in s.name]
    merged = tf1.summary.merge(summaries)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(2):
            session.run([step.train_op, merged])
        before = state(session)
        _, summary = session.run([step.train_op, merged])
        assert state(session) == before
        session.run([step.train_op, merged])
        assert non_finite(session) == []
    (number,) = [v.histo.num for v in tf1.Summary.FromString(summary).value if v.HasField('histo')]
    assert number == 0
