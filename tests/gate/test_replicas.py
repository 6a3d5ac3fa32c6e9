"""`guard` in the replicas of a `MirroredStrategy`: all call it, and one update is guarded."""

import math

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.gate import gate_of, gates_of

tf1 = tf.compat.v1
slim = compat.import_slim()


def momentum():
    return tf1.train.MomentumOptimizer(0.1, 0.9)


def minimized(loss):
    return momentum().minimize(loss)


def with_a_step(loss):
    return momentum().minimize(loss, tf1.train.get_or_create_global_step())


def clipped(loss):
    variables = tf1.trainable_variables()
    pairs = momentum().compute_gradients(loss, variables)
    return momentum().apply_gradients([(tf.clip_by_norm(g, 10.0), v) for g, v in pairs])


def by_guard(make, **kwargs):
    return lambda loss: slimguard.guard(make(loss), loss=loss, **kwargs)


def by_create_train_op(loss):
    return slimguard.create_train_op(loss, momentum(), check_numerics=False)


def without_its_loss(loss):
    return slimguard.guard(minimized(loss))


class Replicas:
    """A model on two devices, each with its own data.

    Args:
      update: makes a train op from the loss of a replica.

    Attributes:
      noise: placeholders that are added to the replicas' losses, and change no gradient.
      hurt: a placeholder that is added to the data of the second replica.
    """

    def __init__(self, update):
        self.noise = [tf1.placeholder_with_default(0.0, []) for _ in range(2)]
        self.hurt = tf1.placeholder_with_default(0.0, [])
        self.losses = []
        strategy = tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1'])

        def model():
            number = len(self.losses)
            weights = tf1.get_variable('w', initializer=[1.0, 2.0])
            data = tf.constant([1.0, 2.0]) * (number + 1.0) + number * self.hurt
            loss = tf.reduce_sum(tf.square(weights - data)) + self.noise[number]
            self.losses.append(loss)
            return update(loss)

        with strategy.scope():
            if tf.__version__ < '2':  # its `run` takes functions of TensorFlow 2 only
                made = strategy.extended.call_for_each_replica(model)
            else:
                made = strategy.run(model)
            self.made = strategy.experimental_local_results(made)
            self.train_op = tf.group(*self.made)
            self.variables = {
                copy.name: copy
                for v in tf1.global_variables()
                for copy in getattr(v, 'values', [v])
            }

    def bits_after(self, *feeds):
        """The bits of all variables after each step."""
        found = []
        two = tf1.ConfigProto(device_count={'CPU': 2}, allow_soft_placement=True)
        with tf1.Session(config=two) as session:
            session.run(tf1.global_variables_initializer())
            for feed in feeds:
                session.run(self.train_op, feed)
                values = session.run(self.variables)
                found.append({name: value.tobytes() for name, value in values.items()})
        return found


UPDATES = {
    'minimize': (minimized, by_guard(minimized)),
    'a global step': (with_a_step, by_guard(with_a_step)),
    'clipped': (clipped, by_guard(clipped)),
    'create_train_op': (
        lambda loss: slim.learning.create_train_op(loss, momentum()),
        by_create_train_op,
    ),
    'no loss': (minimized, without_its_loss),
}


@pytest.mark.full
@pytest.mark.parametrize('name', sorted(UPDATES))
def test_each_update_is_made_once_and_a_bad_one_of_any_replica_never(name):
    plain, guarded = UPDATES[name]
    with tf.Graph().as_default():
        expected = Replicas(plain).bits_after({}, {}, {})
    replicas = Replicas(guarded)
    knows_losses = name != 'no loss'
    bad = [{replicas.noise[1]: math.nan}] if knows_losses else []
    bad += [{replicas.noise[0]: math.nan}] if knows_losses else []
    bad += [{replicas.hurt: math.inf}]
    first, *held, second, third = replicas.bits_after({}, *bad, {}, {})
    assert [first, second, third] == expected
    assert all(each == first for each in held)


def test_there_is_one_gate_and_its_loss_is_the_mean(capfd):
    replicas = Replicas(by_guard(minimized, max_loss=20.0))
    (gate,) = set(gates_of(tf1.get_default_graph()).values())
    assert all(gate_of(each) is gate for each in replicas.made)
    # Without noise, the losses are 0 and 5.
    first, held, second = replicas.bits_after({}, {replicas.noise[1]: 50.0}, {})
    assert held == first != second
    told = capfd.readouterr().err
    assert 'bad: loss (mean of add_1, replica_1/add_1); loss 26' in told


@pytest.mark.full
def test_a_hook_with_the_loss_of_one_replica_watches_it(tmp_path):
    replicas = Replicas(by_guard(with_a_step))
    hook = slimguard.NanLossHook(replicas.losses[0], on_nan='skip', logdir=str(tmp_path))
    two = tf1.ConfigProto(device_count={'CPU': 2}, allow_soft_placement=True)
    with tf1.train.SingularMonitoredSession(hooks=[hook], config=two) as session:
        session.run(replicas.train_op)
        session.run(replicas.train_op, {replicas.noise[1]: math.nan})
        session.run(replicas.train_op)
        assert session.raw_session().run(tf1.train.get_global_step()) == 2
    (incident,) = slimguard.read_incidents(str(tmp_path))
    assert incident.action == 'skip' and np.isnan(incident.loss)
    assert 'replica_1' in incident.reason
