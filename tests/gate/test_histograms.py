"""Histogram summaries of a bad batch, at which TensorFlow's own op raises and ends a training."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.gate.histograms import leave_out_bad_values
from tests.helpers.models import Linear, non_finite, state

tf1 = tf.compat.v1

BAD = [np.nan, 1.0, np.inf, -2.5, -np.inf]


def drawn(summary, feed=None):
    """The histogram that running `summary` gives."""
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        (value,) = tf1.Summary.FromString(session.run(summary, feed)).value
    return value.histo


def test_a_histogram_shows_what_is_finite():
    shown = tf1.summary.histogram('shown', tf.constant(BAD))
    finite = tf1.summary.histogram('finite', tf.constant([1.0, -2.5]))
    nothing = tf1.summary.histogram('nothing', tf.fill([3, 2], np.float32('nan')))
    of_variables = []
    for use_resource in (False, True):
        w = tf1.get_variable('w%d' % use_resource, initializer=BAD, use_resource=use_resource)
        of_variables.append(tf1.summary.histogram('variable', w))
    with pytest.raises(tf.errors.InvalidArgumentError, match='in summary histogram for: shown'):
        drawn(shown)
    leave_out_bad_values(shown.graph)
    assert drawn(shown) == drawn(finite)
    assert drawn(shown).num == 2 and drawn(nothing).num == 0
    assert all(drawn(each) == drawn(finite) for each in of_variables)


def test_finite_values_give_the_same_histogram():
    values = np.random.RandomState(0).randn(7, 5).astype(np.float32)
    values[:2] = 0
    fed = tf1.placeholder(tf.float32)  # of unknown rank
    dtypes = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
    summaries = [tf1.summary.histogram('h', tf.cast(fed, dtype)) for dtype in dtypes]
    before = [drawn(each, {fed: values}) for each in summaries]
    leave_out_bad_values(fed.graph)
    assert [drawn(each, {fed: values}) for each in summaries] == before
    assert before[0].num == 35


def test_what_cannot_raise_or_a_session_may_have_seen_is_left_alone(graph):
    tf1.summary.histogram('whole', tf.constant([1, 2]))
    tf1.summary.histogram('ready', tf.constant(BAD))
    leave_out_bad_values(graph)
    before = graph.as_graph_def()
    leave_out_bad_values(graph)
    assert graph.as_graph_def() == before
    tf1.summary.histogram('seen', tf.constant(BAD))
    before = graph.as_graph_def()
    with tf1.Session():
        leave_out_bad_values(graph)
    graph.finalize()
    leave_out_bad_values(graph)
    assert graph.as_graph_def() == before


@pytest.mark.parametrize('control_flow', ['v1'], indirect=True)
def test_a_histogram_on_a_branch_or_in_a_loop(control_flow):
    def draw():
        return tf1.summary.histogram('branch', tf.constant(BAD))

    on_branch = tf.cond(tf1.placeholder_with_default(True, []), draw, lambda: tf.constant(''))

    def body(i, _):
        return i + 1, tf1.summary.histogram('loop', tf.constant(BAD) * tf.cast(i, tf.float32))

    _, in_loop = tf.while_loop(lambda i, _: i < 3, body, [0, ''])
    leave_out_bad_values(on_branch.graph)
    assert drawn(on_branch).num == 2
    assert drawn(in_loop).max == 2


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


class WaitsFor(tf1.train.SessionRunHook):
    def __init__(self, event):
        self._event = event

    def after_run(self, run_context, run_values):
        assert self._event.wait(300), 'no summary was written'


@pytest.mark.full
def test_train_goes_on_where_a_hook_and_a_thread_draw_bad_histograms(tmp_path):
    step, of_thread = Step(), Written()
    always_bad = tf1.summary.histogram('always_bad', tf.constant(BAD))
    loss = slimguard.train(
        step.train_op,
        str(tmp_path),
        number_of_steps=3,
        log_every_n_steps=0,
        save_summaries_secs=1,
        summary_op=always_bad,
        summary_writer=of_thread,
        hooks=[step.hook, step.summaries, WaitsFor(of_thread.is_written)],
    )
    assert np.isfinite(loss)
    assert step.written.numbers == [12, 12, 11, 12]
    assert 2 in of_thread.numbers
    assert [incident.step for incident in step.hook.incidents] == [2]


def test_the_histograms_of_gradients_in_a_plain_session():
    step = Step(slimguard.create_train_op, summarize_gradients=True)
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
