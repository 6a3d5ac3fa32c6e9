"""Updates that a script makes itself, in runs that train nothing: guarded, however computed."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.unedited import own_updates
from tests.helpers.models import LogLines, records_in, state

tf1 = tf.compat.v1

kinds = pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])


class Own:
    """Variables of a script, and its placeholder.

    Args:
      use_resource: the kind of the variables.

    Attributes:
      x: a batch of two numbers, to be fed.
      weight, other: trainable.
      mean: not trainable.
      scale: a scalar that is not trainable.
      wide: a variable of 64 bits.
      count: the number of batches, an integer.
      session: the session with their values; closed by `close`.
    """

    def __init__(self, use_resource=False):
        self.x = tf1.placeholder(tf.float32, [2], name='x')
        with tf1.variable_scope('own', use_resource=use_resource):
            self.weight = tf1.get_variable('w', initializer=[1.0, 3.0])
            self.other = tf1.get_variable('other', initializer=[2.0, 0.5])
            kept = {'trainable': False}
            self.mean = tf1.get_variable('mean', initializer=[0.5, 0.5], **kept)
            self.scale = tf1.get_variable('scale', initializer=2.0, **kept)
            wide = tf.constant([1.0, 2.0], tf.float64)
            self.wide = tf1.get_variable('wide', initializer=wide, **kept)
            self.count = tf1.get_variable('count', initializer=0, **kept)

    def open(self):
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())
        self.session.run(tf1.local_variables_initializer())

    def run(self, fetches, x=(1.0, 2.0)):
        return self.session.run(fetches, {self.x: x})


BAD = {'x': (1.0, np.nan)}
LARGE = {'weight': (1.0, 3e38)}


def after_another(own):
    with tf.control_dependencies([own.mean.assign_add(own.x)]):
        return own.weight.assign(own.weight - own.mean)


def of_a_written_value(own):
    """Divides by the result of a write, as spectral normalization does."""
    estimate = own.mean.assign(own.weight + 1.0)
    return [own.weight.assign(own.weight / estimate), own.count.assign_add(1)]


def in_a_branch(own):
    def double():
        return tf.identity(own.weight.assign(own.weight * 2.0))

    return tf1.cond(own.other[0] > 0.0, double, lambda: own.weight + 0.0)


def in_a_loop(own):
    def body(number):
        with tf.control_dependencies([own.weight.assign(own.weight * 4.0)]):
            return number + 1

    return tf1.while_loop(lambda number: number < 2, body, [0])


def in_a_function(own):
    return tf.function(lambda: tf.identity(own.weight.assign(own.weight * 2.0)), autograph=False)()


# The assignment of a script; and what makes it bad: the feed, or a value of a variable before it.
UPDATES = {
    'a sum': (lambda own: own.mean.assign_add(own.x), BAD),
    'a running mean': (lambda own: own.mean.assign(0.9 * own.mean + 0.1 * own.x), BAD),
    'rows': (lambda own: tf1.scatter_add(own.mean, [1], own.x[1:]), BAD),
    'a row divided': (
        lambda own: tf1.scatter_div(own.weight, [0], [own.other[0]]),
        {'weight': (3e38, 1.0), 'other': (0.1, 1.0)},
    ),
    'a quotient': (
        lambda own: own.weight.assign(own.weight / tf.norm(own.other)),
        {'other': (0.0, 0.0)},
    ),
    'half the bits': (
        lambda own: own.weight.assign(tf.cast(tf.cast(own.other, tf.float16), tf.float32)),
        {'other': (1e6, 1.0)},
    ),
    'a cast from 64 bits': (
        lambda own: own.weight.assign(tf.cast(own.wide, tf.float32)),
        {'wide': (1e300, 1.0)},
    ),
    'a loss scale': (lambda own: own.scale.assign(2 * own.scale), {'scale': 3e38}),
    'after another': (after_another, BAD),
    'of a value that is written': (of_a_written_value, {'weight': (-1.0, 1.0)}),
    'of an integer': (
        lambda own: own.scale.assign(own.mean[0] / tf.cast(1 - own.count, tf.float32)),
        {'count': 1},
    ),
    'of chance': (
        lambda own: own.mean.assign(tf.sqrt(tf1.random_uniform([2], seed=1) + own.scale)),
        {'scale': -3.0},
    ),
    'several': (
        lambda own: [own.weight.assign(own.scale - own.x), own.other.assign_add(own.x)],
        {'x': (np.inf, 1.0)},
    ),
    'in a branch': (in_a_branch, LARGE),
    'in a loop': (in_a_loop, LARGE),
    'in a function': (in_a_function, LARGE),
}
# The cases with resource variables. A function takes no others, and in branches and loops the kinds
# differ most.
BY_HANDLE = {*list(UPDATES)[::2], 'in a branch', 'in a loop', 'in a function'}


def in_turn(own, update, bad, is_guarded):
    """The results and states of two good runs; if guarded, a bad run must then change nothing."""
    own.open()
    runs = [(own.run(update), state(own.session)) for _ in range(2)]
    if is_guarded:
        for variable in set(bad) - {'x'}:
            getattr(own, variable).load(bad[variable], own.session)
        before = state(own.session)
        own.run(update, bad.get('x', (1.0, 2.0)))
        assert state(own.session) == before
    own.session.close()
    return runs


@pytest.mark.parametrize('name', UPDATES, ids=[name.replace(' ', '_') for name in UPDATES])
def test_a_good_update_keeps_its_bits_and_a_bad_one_changes_nothing(name, tmp_path):
    make, bad = UPDATES[name]
    use_resource = name in BY_HANDLE
    with tf.Graph().as_default(), slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards:
        own = Own(use_resource)
        guarded = in_turn(own, make(own), bad, is_guarded=True)
    with tf.Graph().as_default():
        own = Own(use_resource)
        plain = in_turn(own, make(own), bad, is_guarded=False)
    np.testing.assert_equal(guarded, plain)
    seen = guards.sessions.seen
    assert seen.actions == {'skip': 1} and not seen.refused and not seen.train_ops
    assert seen.lines()[0] == 'guarded 3 runs that only wrote, 1 incident in this run (skip 1)'
    (record,) = records_in(tmp_path)
    assert record['reason'].startswith('not finite') and 'own/' in record['reason']
    assert record['diagnosis'] is not None


def local(own):
    kwargs = {'collections': [tf1.GraphKeys.LOCAL_VARIABLES], 'trainable': False}
    return tf1.get_variable('local', initializer=[0.0, 0.0], **kwargs)


LEFT_ALONE = {
    'a value that is fed': lambda own: own.weight.assign(own.x),
    'a part of what is fed': lambda own: own.weight.assign(tf.tile(own.x[1:], [2])),
    'a copy': lambda own: [own.mean.assign(own.weight), own.other.assign(own.weight)],
    'a row that is fed': lambda own: tf1.scatter_update(own.mean, [0], own.x[:1]),
    'a place that is computed': lambda own: tf1.scatter_update(
        own.mean, [(own.count * 3 + 1) % 2], own.x[:1]
    ),
    'constants': lambda own: own.weight.assign(tf.zeros([2])),
    'a count': lambda own: own.count.assign_add(1),
    'a metric': lambda own: local(own).assign_add(own.x),
    'initial values': lambda own: tf1.global_variables_initializer(),
}


@kinds
def test_what_computes_nothing_is_the_scripts_own(use_resource, tmp_path):
    with slimguard.instrument(on_nan='raise', logdir=tmp_path) as guards, LogLines() as lines:
        own = Own(use_resource)
        updates = {name: make(own) for name, make in LEFT_ALONE.items()}
        own.open()
        for update in updates.values():
            own.run(update, (1.0, np.nan))
        own.session.close()
    assert guards.sessions.seen.writing_runs == 0
    assert not [op.name for op in own.session.graph.get_operations() if 'slimguard/' in op.name]
    assert not lines


@pytest.mark.full
def test_all_that_a_run_writes_is_written_or_nothing(tmp_path):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        own = Own(use_resource=True)
        both = {'sum': own.mean.assign_add(own.x), 'number': own.count.assign_add(1)}
        both['last'] = own.other.assign(own.x)
        both['constant'] = own.scale.assign(5.0)
        own.open()
        own.run(both)
        own.scale.load(1.0, own.session)
        own.run(both, (np.nan, 1.0))
        assert own.session.run(own.scale) == 1.0
        assert list(own.session.run(own.other)) == [1.0, 2.0]
        assert own.session.run(own.count) == 1
        assert own.run(both)['number'] == 2
        own.session.close()


@pytest.mark.full
def test_what_several_elements_need_is_written_once(tmp_path):
    """A fetch that reads a variable after a write must read the value that the gate wrote."""
    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        own = Own()
        add = own.mean.assign_add(own.x)
        with tf.control_dependencies([add]):
            mean = own.mean.read_value() * 2.0
            scale = own.scale.assign(tf.reduce_sum(own.mean.read_value()))
        own.open()
        assert list(own.run([mean, scale])[0]) == [3.0, 5.0]
        own.run([mean, scale], (np.nan, 1.0))
        assert list(own.run([scale, mean])[1]) == [5.0, 9.0]
        own.session.close()


def test_the_input_is_drawn_once_and_goes_on_after_a_bad_batch(tmp_path):
    """The input counts its epochs in a local variable, and its batches in a global one."""
    with slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards:
        own = Own()
        batches = tf.constant([[1.0, 1.0], [np.nan, 1.0], [2.0, 3.0]])
        batch = tf.gather(batches, tf.minimum(own.count.assign_add(1) - 1, 2))
        batch = tf1.train.limit_epochs(batch, num_epochs=3)
        update = own.mean.assign_add(batch)
        own.open()
        seen = [own.session.run([update, batch])[1][1] for _ in range(3)]
        with pytest.raises(tf.errors.OutOfRangeError):
            own.session.run([update, batch])
        assert seen == [1.0, 1.0, 3.0]
        assert list(own.session.run(own.mean)) == [3.5, 4.5]
        own.session.close()
    assert guards.sessions.seen.actions == {'skip': 1}


@pytest.mark.parametrize('use_resource, factor', [(False, 1e30), (True, 1.0)])
def test_a_first_value_is_an_initial_value(use_resource, factor, tmp_path):
    """A first value is written without a gate, since there is no value to keep yet."""
    with slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards:
        own = Own(use_resource)
        update = own.mean.assign(factor * own.x)
        own.session = tf1.Session()
        assert list(own.run([update])[0]) == list(np.float32([factor, 2 * factor]))
        assert guards.sessions.seen.writing_runs == 0
        before = own.session.run(own.mean).tobytes()
        own.run([update], (np.nan, 1.0))
        assert own.session.run(own.mean).tobytes() == before
        own.session.close()
    assert guards.sessions.seen.actions == {'skip': 1}


@pytest.mark.full
def test_a_first_value_is_given_beside_a_bad_first_step(tmp_path):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards:
        own = Own(use_resource=True)
        loss = tf.reduce_sum(own.x * own.weight)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        both = [train_op, own.scale.assign(2.0 * loss)]
        own.session = tf1.Session()
        own.session.run(own.weight.initializer)
        own.run(both, (np.nan, 1.0))
        assert list(own.session.run(own.weight)) == [1.0, 3.0]
        assert np.isnan(own.session.run(own.scale))  # its initial value
        own.run(both)
        before = own.session.run([own.weight, own.scale])
        assert np.isfinite(before[0]).all() and before[1] == 14.0
        own.run(both, (np.nan, 1.0))
        after = own.session.run([own.weight, own.scale])
        assert [each.tobytes() for each in after] == [each.tobytes() for each in before]
        own.session.close()
    assert guards.sessions.seen.actions == {'skip': 2}


@pytest.mark.full
def test_in_one_run_with_a_first_value_it_is_named(tmp_path):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path), LogLines() as lines:
        own = Own()
        both = [own.weight.assign_sub(0.1 * own.x), own.mean.assign(own.x * 2.0)]
        own.session = tf1.Session()
        own.session.run(own.weight.initializer)
        own.run(both)
        own.run(both, (np.nan, 1.0))
        assert np.isfinite(own.session.run(own.weight)).all()
        own.session.close()
    (line,) = [line for line in lines if 'NOT guarded' in line]
    assert "the update of 'own/w' is NOT guarded: the same run gives another variable" in line


@pytest.mark.full
def test_updates_that_are_built_in_turn_with_their_runs_are_guarded_so_many_times(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(own_updates, '_MOST_LATE', 3)
    with slimguard.instrument(on_nan='skip', logdir=tmp_path, capture=False) as guards:
        with LogLines() as lines:
            own = Own()
            own.open()
            for _ in range(own_updates._MOST_LATE + 5):
                own.run(own.scale.assign(own.scale * 0.5))
            own.session.close()
    (line,) = [line for line in lines if 'NOT guarded' in line]
    assert "'own/scale' is NOT guarded: the script builds an update anew" in line
    assert guards.sessions.seen.writing_runs == own_updates._MOST_LATE + 1


@pytest.mark.full
def test_weights_that_are_clipped_have_a_gate_where_learning_rates_are_lowered(tmp_path):
    """Clipping uses no learning rate; and a running mean keeps its decay, as it is no weight."""
    with slimguard.instrument(on_nan='skip,rollback:3x0.5', logdir=tmp_path) as guards:
        own = Own()
        clip = own.weight.assign(own.weight / tf.norm(own.other))
        mean = own.mean.assign_sub(0.5 * (own.mean - own.x))
        own.open()
        own.run([clip, mean])
        own.other.load((0.0, 0.0), own.session)
        own.run([clip, mean])
        assert np.isfinite(own.session.run(own.weight)).all()
        own.session.close()
    seen = guards.sessions.seen
    assert not seen.refused and sum(seen.actions.values()) == 1


@pytest.mark.full
def test_a_table_is_computed_behind_a_gate(tmp_path):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards:
        x = tf1.placeholder(tf.float32, [1])
        table = (
            tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
            if (hasattr(tf.lookup.experimental, 'MutableHashTable'))
            else tf.contrib.lookup.MutableHashTable(tf.int64, tf.float32, 0.0)
        )
        at = tf.constant([1], tf.int64)
        update = table.insert(at, 0.5 * table.lookup(at) + x)
        with tf1.Session() as session:
            for value in (4.0, np.nan, 2.0):
                session.run(update, {x: [value]})
            assert session.run(table.lookup(at)) == [4.0]
    assert guards.sessions.seen.actions == {'skip': 1}


@pytest.mark.full
def test_between_the_steps_of_a_training(tmp_path):
    """Such as clipping in a GAN, or the update of a target network."""
    with slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards:
        own = Own()
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(
            tf.reduce_sum(own.weight * own.x), var_list=[own.weight]
        )
        clip = own.weight.assign(tf.clip_by_value(own.weight, -0.25, 0.25))
        follow = own.mean.assign(0.5 * own.mean + 0.5 * own.weight)
        own.open()
        for value in [(1.0, 2.0), (np.nan, 1.0), (1.0, 2.0)]:
            own.run(train_op, value)
            own.run([clip])
            own.run(follow)
        assert np.isfinite(own.session.run(own.mean)).all()
        own.session.close()
    seen = guards.sessions.seen
    said = 'guarded GradientDescent: 3 steps and 6 runs that only wrote, 1 incident in this run '
    assert seen.lines()[0] == said + '(skip 1)'


def test_what_cannot_be_guarded_is_named_once(tmp_path):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards, LogLines() as lines:
        own = Own()
        with tf.control_dependencies([own.mean.assign_add(own.x)]):
            later = tf1.placeholder(tf.float32, [])
        update = own.weight.assign(own.weight * later)
        own.open()
        for _ in range(2):
            own.session.run(update, {own.x: (1.0, 1.0), later: 1.0})
        own.session.close()
    (line,) = [line for line in lines if 'NOT guarded' in line]
    assert "the update of 'own/mean, own/w' is NOT guarded: cannot guard: placeholder" in line
    assert list(guards.sessions.seen.refused) == ['own/mean, own/w']


@pytest.mark.full
@pytest.mark.parametrize('what', ['data', 'overflow'])
def test_why_what_is_written_in_a_loop_is_bad_is_told(what, tmp_path):
    """The diagnosis cannot fetch values in a loop, but it can fetch the loop's inputs."""
    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        own = Own(use_resource=True)

        @tf.autograph.experimental.do_not_convert
        def add(row):
            return tf.reduce_sum(own.weight.assign_add(tf.fill([2], row) * 1e38))

        sums = tf.map_fn(add, own.x, parallel_iterations=1)
        own.open()
        own.run(sums, (1.0, np.nan) if what == 'data' else (3.0, 3.0))
        assert list(own.session.run(own.weight)) == [1.0, 3.0]
        own.session.close()
    (record,) = records_in(tmp_path)
    why = 'in the input: bad data: 1 NaN'
    if what == 'overflow':
        why = 'in the update: own/w would not be finite after the update'
    assert record['diagnosis'].startswith(why)


@pytest.mark.full
def test_a_rollback_gives_back_what_was_built_after_the_state_was_kept(tmp_path):
    """Such as variables of a second phase: they get their values from before its first step."""
    with slimguard.instrument(on_nan='rollback', logdir=tmp_path):
        own = Own(use_resource=True)
        own.open()
        train = own.weight.assign_sub(0.25 * own.x)
        for _ in range(30):
            own.run(train)
        with tf1.variable_scope('', use_resource=True):
            late = tf1.get_variable('late', initializer=[1.0, 1.0])
            local = [tf1.GraphKeys.LOCAL_VARIABLES]
            batches = tf1.get_variable('batches', initializer=0, collections=local, trainable=False)
        both = tf.group(own.weight.assign_sub(0.25 * own.x), late.assign_add(own.x))
        with tf.control_dependencies([both]):
            both = batches.assign_add(1)
        own.session.run([late.initializer, batches.initializer])
        for _ in range(3):
            own.run(both)
        own.run(both, (np.nan, 1.0))
        assert own.session.run(late).tolist() == [1.0, 1.0]
        assert own.session.run(batches) >= 3
        # It went back to a snapshot among the first thirty steps, not to the state before them.
        assert 1.0 - 30 * 0.25 <= own.session.run(own.weight)[0] < 1.0
        own.session.close()
    (record,) = records_in(tmp_path)
    assert record['restored'].startswith('a snapshot after ')


def test_that_it_ends_no_other_thread_is_said(tmp_path):
    errors = []

    def act():
        try:
            own.run(update, (np.nan, 1.0))
        except tf.errors.OutOfRangeError as error:
            errors.append(error)

    with slimguard.instrument(on_nan='stop', logdir=tmp_path), LogLines() as lines:
        own = Own()
        own.open()
        update = own.mean.assign(2.0 * own.x)
        actor = threading.Thread(target=act, name='the actor')
        actor.start()
        actor.join(300)
        own.session.close()
    assert len(errors) == 1
    (line,) = [line for line in lines if 'ends a run in thread' in line]
    assert "in thread 'the actor' only" in line


@pytest.mark.full
def test_no_summaries_are_added_of_runs_that_only_write(tmp_path):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        own = Own()
        update = own.mean.assign_add(own.x)
        own.open()
        writer = tf1.summary.FileWriter(str(tmp_path / 'events'))
        for step in range(3):
            own.run(update)
            writer.add_summary(tf1.Summary(value=[tf1.Summary.Value(tag='a')]), step)
        writer.close()
        own.session.close()
    (events,) = (tmp_path / 'events').iterdir()
    tags = [
        [v.tag for v in event.summary.value] for event in tf1.train.summary_iterator(str(events))
    ]
    assert tags[1:] == [['a']] * 3
