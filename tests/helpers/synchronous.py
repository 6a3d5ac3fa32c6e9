"""A small model that a `SyncReplicasOptimizer` trains, alone in its process or on a cluster."""

import numpy as np
import tensorflow as tf

from tests.helpers.gate_models import Damage

tf1 = tf.compat.v1

# The name of the place at which `Damage` damages the gradient of the weights.
BAD = 'gradient'


class Synchronous:
    """A model that a `SyncReplicasOptimizer` trains, with an embedding and averages of weights."""

    def __init__(self, optimizer, resource=True, replicas=1, device=None):
        self.damage = Damage()
        # No averages of ref variables on TensorFlow 2: now and then it initializes the average
        # before the variable.
        self.averages = resource or tf.__version__.startswith('1.')
        with tf1.variable_scope('', use_resource=resource), tf1.device(device):
            self.step = tf1.train.get_or_create_global_step()
            w = tf1.get_variable('w', initializer=tf.constant([0.5, -0.5]))
            table = tf1.get_variable('table', initializer=tf.ones([4, 2]))
            rows = tf.nn.embedding_lookup(table, [1, 3, 3])
            hurt = self.damage.gradient(w), self.damage.gradient(rows, 'gradient of table')
            self.loss = sum(tf.reduce_sum(each) for each in hurt) * 1e-3 + self.damage('loss')
            average = tf1.train.ExponentialMovingAverage(0.9, self.step) if self.averages else None
            self.optimizer = tf1.train.SyncReplicasOptimizer(
                optimizer,
                replicas_to_aggregate=replicas,
                total_num_replicas=1,
                variable_averages=average,
                variables_to_average=[w, table] if self.averages else None,
            )
            # The number of tokens at the start. Without any, each step is an update.
            self.start_with = replicas - 1
            self.train_op = self.optimizer.minimize(self.loss, global_step=self.step)

    def session(self, *hooks, master='', **settings):
        """A session in which the chief's thread runs."""
        tokens = self.start_with
        start = self.optimizer.make_session_run_hook(is_chief=True, num_tokens=tokens)
        return tf1.train.MonitoredTrainingSession(
            master,
            hooks=[start, *hooks],
            stop_grace_period_secs=0,  # the thread ends with the session
            log_step_count_steps=None,
            save_summaries_steps=None,
            save_checkpoint_secs=1000,
            **settings,
        )


class Run:
    """The results of some steps: after each, the bits of all variables, and the global step."""

    def __init__(self, train_op, model, feeds, **settings):
        reads = {variable.name: variable.value() for variable in tf1.global_variables()}
        self.bits, self.steps = [], []
        with model.session(**settings) as session:
            for feed in feeds:
                fed = {model.damage.places[place]: value for place, value in feed.items()}
                session.run(train_op, fed)
                values = session.run(reads)
                assert all(np.isfinite(value).all() for value in values.values())
                self.bits.append({name: value.tobytes() for name, value in values.items()})
                self.steps.append(int(values['global_step:0']))


def said_of_chief(capfd):
    """The printed lines about bad updates."""
    lines = capfd.readouterr().err.splitlines()
    return [line for line in lines if line.startswith("slimguard: the chief's update")]
