"""Scripts with a `tf.cond`, and scripts whose `global_step` is not TensorFlow's global step."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.incidents import record_file

tf1 = tf.compat.v1


class Script:
    """A plain session that trains a weight on four batches; the third has a NaN."""

    def __init__(self, logdir):
        self.logdir = logdir
        self.x = tf1.placeholder(tf.float32, [None, 4])
        self.weight = tf1.get_variable('w', [4, 1], initializer=tf1.ones_initializer())
        self.product = tf.matmul(self.x, self.weight)

    def run(self, make_train_op, policy='skip'):
        """The incidents of a training; `make_train_op` makes the train op."""
        with slimguard.instrument(policy, logdir=self.logdir) as guards:
            train_op = make_train_op(self)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                for number in range(4):
                    batch = np.ones([8, 4])
                    if number == 2:
                        batch[1, 2] = np.nan
                    session.run(train_op, {self.x: batch})
                assert np.isfinite(session.run(self.weight)).all()
            assert not guards.sessions.seen.refused
        return record_file.read_incidents(self.logdir)


@pytest.mark.full
def test_a_script_may_leave_bad_updates_out_by_itself(tmp_path):
    """The learning rate is outside of the branch, so it has no value if the branch is not taken."""

    def make(script):
        rate = tf1.get_variable('rate', initializer=0.01, trainable=False)
        optimizer = tf1.train.AdamOptimizer(rate)
        pairs = optimizer.compute_gradients(tf.reduce_mean(tf.square(script.product)))
        is_good = tf.reduce_all(tf.math.is_finite(pairs[0][0]))
        return tf.cond(is_good, lambda: optimizer.apply_gradients(pairs), tf.no_op)

    (incident,) = Script(tmp_path).run(make)
    assert incident.action == 'skip' and '1 NaN among 32 values' in incident.diagnosis


@pytest.mark.full
def test_a_sum_of_gradients_from_a_loop_and_a_branch_waits_for_nothing(tmp_path):
    """A loop's result is in the loop's frame, so it cannot wait for an op outside of the loop."""

    def make(script):
        array = tf.TensorArray(tf.float32, 4).unstack(tf.squeeze(script.weight * 2.0, 1))
        first = tf.cond(script.x[0, 0] > 100.0, lambda: tf.zeros([]), lambda: array.read(0))
        _, total = tf.while_loop(
            lambda i, _: i < 4, lambda i, total: (i + 1, total + array.read(i)), [1, first]
        )
        loss = tf.square(total) + tf.reduce_mean(script.product)
        return tf1.train.GradientDescentOptimizer(0.01).minimize(loss)

    (incident,) = Script(tmp_path).run(make)
    assert incident.action == 'skip'


def test_a_graph_is_exported_when_nobody_adds_to_it(tmp_path):
    """A Supervisor saves from a thread of its own, at any moment."""
    weight = tf1.get_variable('w', initializer=1.0)
    with slimguard.instrument('skip', logdir=tmp_path) as guards:
        saver = tf1.train.Saver([weight])
        thread = threading.Thread(target=saver.export_meta_graph, daemon=True)
        with guards.sessions._lock:  # held while a gate is built
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
        thread.join(300)
        assert not thread.is_alive()


@pytest.mark.full
@pytest.mark.parametrize(
    'kind, policy',
    [
        ('a float', 'rollback'),
        ('a float by handle', 'skip'),
        ('an int of no collection', 'rollback'),
        ('a placeholder', 'skip'),
    ],
)
def test_what_is_named_as_the_global_step_and_is_none(kind, policy, tmp_path):
    """TensorFlow's own cifar10_multi_gpu_train.py counts its steps in a float."""

    def make(script):
        optimizer = tf1.train.GradientDescentOptimizer(0.01)
        loss = tf.reduce_mean(tf.square(script.product))
        if kind == 'a placeholder':
            tf1.placeholder(tf.int32, [], name='global_step')
            return optimizer.minimize(loss)
        step = tf1.get_variable(
            'global_step',
            initializer=tf.constant(0, tf.int64 if kind.startswith('an int') else tf.float32),
            trainable=False,
            use_resource=kind != 'a float',
        )
        return optimizer.minimize(loss, global_step=step)

    (incident,) = Script(tmp_path).run(make, policy)
    # The optimizer adds one to the int, so it is the global step even if TensorFlow knows none.
    counted = 2 if kind.startswith('an int') else None
    assert (incident.action, incident.step) == (policy, counted)


def test_a_first_state_that_is_not_finite_is_nothing_to_go_back_to(tmp_path):
    weight = tf1.get_variable('w', initializer=np.float32(np.nan))
    with slimguard.instrument('rollback', logdir=tmp_path):
        train_op = tf1.train.GradientDescentOptimizer(0.01).minimize(tf.square(weight))
        with tf1.Session() as session:
            session.run(weight.initializer)
            with pytest.raises(slimguard.NanLossError, match='already not finite before this step'):
                session.run(train_op)
    (incident,) = record_file.read_incidents(tmp_path)
    assert incident.action == 'raise' and incident.restored is None
