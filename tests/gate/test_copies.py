"""The copies from which an update is undone: if one is not finite, the update does not begin."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import gate_models as models

tf1 = tf.compat.v1

worlds = pytest.mark.parametrize(
    'is_trial, use_resource', [(False, False), (True, True)], ids=['slow path, ref', 'trial']
)
# Runs in the caller's thread. The step waits in one of TensorFlow's two threads, and TensorFlow
# 2.21 was once seen not to use the other one, but to wait for ever.
HERE = tf1.RunOptions(inter_op_thread_pool=-1)
LARGE = 1e30  # a gradient that takes no fast path


class Peer:
    """Another worker that trains the same weight: its update overflows, and it undoes that.

    Attributes:
      overflows: whether it does so during the next step of the training.
    """

    def __init__(self, use_resource):
        self.overflows = False
        self._is_to_put_back = False
        start = tf.constant([0.5, -0.5])
        self.w = tf1.get_variable('w', initializer=start, use_resource=use_resource)
        self._value = tf1.placeholder(tf.float32, [2])
        self._assign = tf1.assign(self.w, self._value).op
        self.session = None

    def write(self, gradient):
        """Overflows, before the training copies the weight."""
        if self.overflows:
            self.overflows, self._is_to_put_back = False, True
            self._before = self.session.run(self.w, options=HERE)
            self._run([math.inf, 1.0])
        return gradient

    def put_back(self):
        """Puts the weight back, after the training has copied it."""
        if self._is_to_put_back:
            self._is_to_put_back = False
            self._run(self._before)
        return np.int32(0)

    def _run(self, value):
        self.session.run(self._assign, {self._value: value}, HERE)


def trained_beside(peer, is_trial):
    """A training of two weights, one of which `peer` trains as well, and the gradient to feed."""
    extra = tf1.placeholder_with_default(0.0, [])
    v = tf1.get_variable('v', initializer=tf.constant([1.0, 2.0]))
    if is_trial:
        optimizer = tf1.train.RMSPropOptimizer(3e38, centered=True, epsilon=1.0)
    else:
        optimizer = tf1.train.MomentumOptimizer(1e9, 0.5)
    gradients = optimizer.compute_gradients(1e-10 * tf.reduce_sum(peer.w + v), [peer.w, v])
    (of_w, _), (of_v, _) = gradients
    of_w = tf1.py_func(peer.write, [of_w], tf.float32)
    of_w.set_shape([2])
    with tf.control_dependencies([of_w]):
        of_v = of_v + extra
    step = tf1.train.get_or_create_global_step()
    update = optimizer.apply_gradients([(of_w, peer.w), (of_v, v)], global_step=step)
    with tf.control_dependencies([update]):
        train_op = tf.group(tf1.py_func(peer.put_back, [], tf.int32))
    return train_op, extra


@worlds
def test_what_another_puts_back_meanwhile_is_not_lost(is_trial, use_resource):
    """The copy of the weight is an Inf. The update overflows, and must not write the copy back."""
    peer = Peer(use_resource)
    train_op, extra = trained_beside(peer, is_trial)
    guarded = models.Guarded(train_op, tf1.Session())
    peer.session = guarded.sess
    guarded.assert_written()
    before = guarded.snapshot(guarded.sess)
    peer.overflows = True
    assert not guarded.step({extra: 1e15 if is_trial else LARGE})
    peer.put_back()
    assert not models.changed(before, guarded.snapshot(guarded.sess))
    assert guarded.finding().state_lost
    assert guarded.finding().reason == 'already not finite before this step: w'
    assert guarded.finding().tensors == ('w',)
    guarded.assert_written()


@worlds
def test_a_slot_that_is_lost_is_told_as_lost(is_trial, use_resource):
    """The slot is not finite, but all other inputs of the update are."""
    damage = models.Damage()
    kind = 'CenteredRMSProp' if is_trial else 'Momentum'
    model = models.two_weights(damage, models.OPTIMIZERS[kind], use_resource=use_resource)
    guarded = models.Guarded(model)
    guarded.assert_written()
    name = 'dense/RMSProp_1' if is_trial else 'dense/Momentum'
    slot = next(v for v in tf1.global_variables() if v.op.name.startswith(name))
    slot.load([1.0, math.inf, 1.0], guarded.sess)
    feed = {} if is_trial else {damage.places['sparse gradient']: LARGE}
    guarded.assert_held(feed, 'a slot that is lost')
    assert guarded.finding().state_lost
    assert guarded.finding().tensors == (slot.op.name,)
    slot.load([1.0, 1.0, 1.0], guarded.sess)
    guarded.assert_written(feed)


@worlds
def test_what_begins_as_an_inf_does_not_keep_a_step_from_being_written(is_trial, use_resource):
    """Such as the smallest loss so far."""
    damage = models.Damage()
    kind = 'CenteredRMSProp' if is_trial else 'GradientDescent'
    train_op, loss = models.two_weights(damage, models.OPTIMIZERS[kind], use_resource=use_resource)
    best = tf1.get_variable(
        'best', initializer=math.inf, trainable=False, use_resource=use_resource
    )
    with tf.control_dependencies([train_op]):
        update = tf1.assign(best, tf.minimum(best, loss))
    guarded = models.Guarded((tf.group(update), loss))
    guarded.assert_held({damage.places['loss']: math.nan}, 'a bad loss')
    guarded.assert_written({} if is_trial else {damage.places['dense gradient']: LARGE})
    assert not guarded.snapshot.not_finite(guarded.sess)
