"""Whatever scripts fetch, and however, under `instrument` it is guarded and runs once."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.children import python
from tests.helpers.models import LogLines, non_finite, state
from tests.unedited.test_unedited_loops import STEPS, run

tf1 = tf.compat.v1


@pytest.mark.full
def test_fetches_that_a_script_changes_are_read_anew(tmp_path):
    def loop(model, train_op, logdir, watch):
        fetches = collections.defaultdict(list, loss=model.loss)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(fetches)
            fetches['train'] = train_op
            for _ in range(STEPS):
                session.run(fetches)
                watch(session)

    states = run(loop, tmp_path, 'skip')
    assert states[1] == states[0] != states[2]


@pytest.mark.full
def test_a_tensor_of_several_parts_that_waits_for_the_update_trains_once(tmp_path):
    def minimize(model):
        with tf.control_dependencies([model.minimize()]):
            values = tf.reshape(tf.identity(model.loss), [1])
        index = tf.zeros([1, 1], tf.int64)
        return tf.SparseTensor(index, values, tf.ones([1], tf.int64))

    def loop(model, sparse, logdir, watch):
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for number in range(STEPS):
                (value,) = session.run([sparse])
                assert isinstance(value, tf1.SparseTensorValue)
                assert np.isfinite(value.values).all() == (number != 2)
                watch(session)
                assert session.run(model.step) == (number + 1 if number < 2 else number)

    run(loop, tmp_path, 'skip', minimize=minimize)


class Counting(tf1.Session):
    """A session of a script's own, with fewer arguments than TensorFlow's."""

    runs = 0

    def run(self, fetches, feed_dict=None):
        self.runs += 1
        return super().run(fetches, feed_dict)


@pytest.mark.full
def test_a_scripts_own_session_class_is_called_once_a_step(tmp_path):
    def loop(model, train_op, logdir, watch):
        with Counting() as session:
            session.run(tf1.global_variables_initializer())
            for number in range(STEPS):
                session.run(train_op)
                assert session.runs == number + 2
            assert non_finite(session) == []
            assert session.run(model.step) == STEPS - 1

    run(loop, tmp_path, 'skip')


def test_a_partial_run_that_trains_or_writes_is_said_not_to_be_guarded(tmp_path):
    def minimize(model):
        with tf.control_dependencies([model.minimize()]):
            return tf.identity(model.loss, name='after')

    def loop(model, after, logdir, watch):
        mean = tf1.get_variable('mean', initializer=0.0, trainable=False)
        update = tf.identity(mean.assign_add(1.0), name='update')
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(2):
                handle = session.partial_run_setup([after, model.loss], [])
                session.partial_run(handle, [after, model.loss])
            session.partial_run_setup([update])

    with LogLines() as lines:
        run(loop, tmp_path, 'skip', minimize=minimize, bad=())
    said = [line for line in lines if 'NOT guarded' in line]
    assert all('NOT guarded: Session.partial_run' in line for line in said)
    assert ["'after'" in said[0], "'update'" in said[1]] == [True] * len(said)


def test_a_run_at_the_end_of_the_input_is_no_step():
    with slimguard.instrument() as guards, tf.Graph().as_default(), tf1.Session() as session:
        batches = tf.data.Dataset.range(3)
        batch = tf.cast(tf1.data.make_one_shot_iterator(batches).get_next(), tf.float32)
        weight = tf1.get_variable('w', initializer=1.0)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(weight * batch)
        session.run(tf1.global_variables_initializer())
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                session.run(train_op)
    assert guards.sessions.seen.train_ops == {'GradientDescent': 3}


@pytest.mark.full
def test_what_is_fetched_together_goes_by_a_name_of_the_script(tmp_path):
    with slimguard.instrument() as guards, tf.Graph().as_default(), tf1.Session() as session:
        weight = tf1.get_variable('w', initializer=1.0)
        with tf.control_dependencies(
            [tf1.train.GradientDescentOptimizer(0.1).minimize(weight * 2)]
        ):
            one, other = tf.identity(1.0, name='one'), tf.identity(2.0, name='other')
        session.run(tf1.global_variables_initializer())
        assert session.run([one, other]) == [1.0, 2.0]
        assert state(session)['w:0'] == np.float32(1.0 - 0.2).tobytes()
    assert guards.sessions.seen.train_ops == {'one': 1}


_RUNS_ALONE_AND_TOGETHER = """
import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [2])
weights, mean = tf.get_variable('weights', [2]), tf.get_variable('mean', [2], trainable=False)
update = tf.assign(mean, 0.9 * mean + 0.1 * x)
train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weights * x))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for fetches in update, train_op, [train_op, update], [train_op, x, update.op]:
        session.run(fetches, {x: [1.0, 1.0]})
"""


@pytest.mark.full
def test_tensorflow_does_not_warn_of_what_is_made_after_a_run(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text(_RUNS_ALONE_AND_TOGETHER)
    arguments = ['-m', 'slimguard', 'run', '--tf1', '--on_nan=skip', script]
    run = python(*arguments, variables={'TF_CPP_MIN_LOG_LEVEL': '0'}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert (
        'guarded GradientDescent: 3 steps and 1 run that only wrote, no incident'
        in run.stdout + run.stderr
    )
    assert 'after it was run' not in run.stderr
