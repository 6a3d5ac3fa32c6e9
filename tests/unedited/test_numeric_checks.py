"""A script's own `tf.add_check_numerics_ops` checks what the script computes, and ends."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import graph as graphs

tf1 = tf.compat.v1

OPTIMIZERS = {
    'plain': lambda: tf1.train.GradientDescentOptimizer(0.01),
    'momentum': lambda: tf1.train.MomentumOptimizer(0.01, 0.9),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Script:
    """Trains once, and then adds its checks to the graph; `checked` runs the checks and trains."""

    def __init__(self, optimizer, use_resource):
        tf1.get_variable_scope().set_use_resource(use_resource)
        self.x = tf1.placeholder(tf.float32, [None, 3])
        self.w = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
        self.loss = tf.reduce_mean(tf.square(tf.matmul(self.x, self.w)))
        self.train_op = OPTIMIZERS[optimizer]().minimize(self.loss)
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())
        self.session.run(self.train_op, {self.x: np.ones([2, 3])})
        self.check = tf1.add_check_numerics_ops()
        # The check must not include an Unstage of ours: a run would wait for it for ever.
        assert not [op for op in graphs.ancestors([self.check]) if op.name.startswith('slimguard/')]

    def checked(self, x):
        return self.session.run([self.check, self.train_op, self.loss], {self.x: x})[-1]


@pytest.mark.parametrize('optimizer, use_resource', [('plain', False), ('momentum', True)])
def test_good_steps_pass_and_a_nan_is_for_the_check(optimizer, use_resource):
    with slimguard.instrument(on_nan='skip'), tf.Graph().as_default() as graph:
        script = Script(optimizer, use_resource)
        assert any(op.name.startswith('slimguard/') for op in graph.get_operations())
        with script.session:
            losses = [script.checked(np.ones([2, 3])) for _ in range(3)]
            assert losses == sorted(losses, reverse=True)
            before = script.session.run(script.w)
            with pytest.raises(tf.errors.InvalidArgumentError, match='Tensor had NaN'):
                script.checked(np.full([2, 3], np.nan))
            assert (script.session.run(script.w) == before).all()
            script.session.run(script.train_op, {script.x: np.full([2, 3], np.nan)})
            assert (script.session.run(script.w) == before).all()
            script.checked(np.ones([2, 3]))
