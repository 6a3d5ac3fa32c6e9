"""The last steps before an incident: what a history says, and where it began."""

import json

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import slimguard
from slimguard.incidents.history import History
from slimguard.report import last_steps, report_data

NAN, INF = float('nan'), float('inf')


def history_of(norms, names=None, loss=None, step=None, good=None, rates=None):
    """A history as a training makes it, of norms [steps, gradients]; `step`: after each."""
    norms = np.asarray(norms, float)
    steps, gradients = norms.shape
    names = names or [('layer%d/weights' % n,) for n in range(gradients)]
    columns = [
        np.zeros(steps),  # the bad steps that nobody has read yet
        np.arange(1.0, steps + 1) if step is None else np.asarray(step, float),
        np.ones(steps) if good is None else np.asarray(good, float),
        np.full(steps, NAN) if loss is None else np.asarray(loss, float),
        np.full(steps, 0.1) if rates is None else np.asarray(rates, float),
    ]
    with np.errstate(over='ignore'):
        rows = np.concatenate([np.stack(columns, axis=1), norms**2 / 2], axis=1)
        return json.loads(json.dumps(History(tuple(names), list(rows)).to_dict()))


def steps_of(*args, **kwargs):
    return last_steps.last_steps_of(history_of(*args, **kwargs))


def test_what_nobody_knows_is_none_and_what_is_not_finite_is_kept():
    said = history_of([[1.0, 2.0], [NAN, 4.0]], loss=[0.5, INF])
    said['learning_rate'] = [None, None]
    said['loss'][1] = 'Infinity'  # as incident.json has it
    found = last_steps.last_steps_of(said)
    assert found.learning_rate is None
    assert found.loss.tolist() == [0.5, INF]
    assert np.isnan(found.norms).tolist() == [[False, False], [True, False]]
    assert last_steps.last_steps_of(None) is None
    assert steps_of(np.zeros([0, 3])) is None
    assert steps_of(np.zeros([4, 0]), loss=[1, 2, 3, 4]).gradient_norm is None


def test_of_a_long_history_the_newest_steps_are_shown():
    found = steps_of(np.ones([last_steps.MOST_STEPS + 5, 1]))
    assert len(found.step) == len(found.norms) == last_steps.MOST_STEPS
    assert found.step[-1] == last_steps.MOST_STEPS + 4


def test_what_is_finite_at_fewer_than_three_steps_is_no_line():
    steps = steps_of(np.ones([5, 1]), loss=[1.0, 2.0, NAN, NAN, INF])
    assert [name for name, _ in last_steps.lines(steps)] == ['gradient norm']


# The gradients.


def began(norms, **kwargs):
    steps = steps_of(norms, **kwargs)
    return last_steps.beginning_of(steps, last_steps.ratios_of(steps))


def test_where_it_began_is_the_first_step_and_its_farthest_row():
    norms = np.ones([20, 4])
    norms[15:, 2] = 1e3
    norms[15:, 1] = 1e5
    norms[18:] = 1e9
    names = [('a/weights',), ('b/biases', 'b/beta', 'c/beta'), ('c/weights',), ('d/weights',)]
    begin = began(norms, names=names)
    assert (begin.column, begin.gradient) == (15, 1)
    assert (
        'At step 15: the gradient of b/biases and 2 more goes above 100 times its median (1e+05 '
        'times); 2 of 4 gradients left their usual range.' in begin.said
    )


def test_what_befalls_all_gradients_at_once_begins_in_none():
    norms = np.ones([5, 3])
    norms[4] = NAN
    begin = began(norms)
    assert begin.gradient is None
    assert begin.said == 'At step 4: no gradient is finite.'
    norms[4] = [NAN, 1e3, NAN]
    said = 'At step 4: each gradient is NaN or Inf, or over 100 times its median.'
    assert began(norms).said == said


def test_without_step_numbers_it_counts_back_from_the_last_step():
    norms = np.ones([20, 2])
    norms[19] = NAN
    assert began(norms, step=[NAN] * 20).said == 'At the last step: no gradient is finite.'
    norms[15:19, 0] = 1e3
    said = began(norms, step=[NAN] * 20).said
    assert said.startswith('4 steps before the last: the gradient of layer0/weights goes above')


def test_it_begins_where_the_last_explosion_does():
    norms = np.ones([60, 3])
    assert began(np.random.RandomState(0).lognormal(0, 0.5, [200, 30])) is None
    norms[[10, 20, 21], 0] = 1e4  # the training recovered from these
    norms[50:, 1] = 1e3
    norms[53] = 1.0  # one usual step within the explosion
    assert (began(norms).column, began(norms).gradient) == (50, 1)


def test_it_begins_after_a_rollback_and_of_steps_of_one_number_says_which():
    norms, good = np.ones([8, 2]), np.ones(8)
    norms[[1, 3, 7]], good[[1, 3, 7]] = 1e3, 0  # step 1 is held and rolled back, twice
    step = [1, 1, 1, 1, 1, 2, 3, 3]
    begin = began(norms, step=step, good=good)
    assert begin.column == 7
    assert begin.said.startswith('At step 3: each gradient is ')
    since = began(norms[:5], step=step[:5], good=good[:5])
    assert since is None
    steps = steps_of(norms[:5], step=step[:5], good=good[:5])
    said = last_steps.caption(steps, last_steps.ratios_of(steps), since)
    assert 'Since the last rollback no gradient is above 100 times its median' in said
    # A held step whose number comes again is no rollback.
    skipped = [0, 1, 0, 1, 0, 0]
    begin = began(norms[skipped], step=[1, 1, 2, 2, 3, 4], good=good[skipped])
    assert begin.column == 1 and begin.said.startswith('At step 1: ')


def test_a_variable_without_a_row_is_named(tmp_path):
    ids = tf1.placeholder(tf.int32, [2])
    table = tf1.get_variable('table', [5, 3])
    rows = tf.matmul(tf.nn.embedding_lookup(table, ids), tf1.get_variable('w', [3, 1]))
    loss = tf.reduce_mean(rows) + 0 * tf.reduce_mean(tf.math.log(tf.cast(ids, tf.float32)))
    op = slimguard.guard(tf1.train.AdamOptimizer().minimize(loss), loss=loss)
    session = slimguard.watch(tf1.Session(), on_nan='skip', logdir=str(tmp_path))
    with session:
        session.run(tf1.global_variables_initializer())
        for first in (1, 1, 1, 0):
            session.run(op, {ids: [first, 2]})
    (it,) = report_data.gather(str(tmp_path)).incidents
    steps = it.opened.steps
    assert steps.gradients == [('w', 0)] and list(steps.without_row) == ['table']
    said = last_steps.caption(steps, last_steps.ratios_of(steps), None)
    assert 'table has no row: the optimizer applies the gradient in several ops' in said


def test_a_norm_of_zero_is_the_lowest_unless_most_are():
    norms = np.ones([9, 2])
    norms[8, 0] = 0
    norms[:, 1] = 0
    norms[8, 1] = 1e-9
    steps = steps_of(norms)
    ratios = last_steps.ratios_of(steps)
    assert ratios[:8].tolist() == [[0.0, 0.0]] * 8
    assert ratios[8].tolist() == [-INF, INF]
    assert began(norms) is None
    assert 'gradient' not in last_steps.caption(steps, ratios, None)


def test_the_median_is_that_of_the_written_steps_if_there_are_enough():
    norms = np.full([10, 2], 1e4)
    norms[[0, 2, 4]] = 1.0
    good = norms[:, 0] == 1.0
    assert began(norms, good=good).column == 1
    good[4] = False
    assert began(norms, good=good) is None
    steps = steps_of(norms, good=good)
    assert 'gradient' not in last_steps.caption(steps, last_steps.ratios_of(steps), None)
    norms[9] = NAN
    assert began(norms, good=good).said.endswith(': no gradient is finite.')
