"""A script under a guard imports a graph that was saved under a guard."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import Linear, non_finite, records_in

tf1 = tf.compat.v1


def save(train_op, folder):
    """Saves the default graph and its variables as a script does; returns the prefix."""
    tf1.get_collection_ref(tf1.GraphKeys.TRAIN_OP)[:] = [train_op]
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        return tf1.train.Saver().save(session, str(folder / 'm'))


@pytest.mark.full
@pytest.mark.parametrize('is_tensor, scope', [(False, None), (True, 'imported')])
def test_a_train_op_that_was_saved_behind_its_gate_is_guarded(tmp_path, is_tensor, scope):
    with slimguard.instrument('skip', logdir=tmp_path, capture=False):
        model = Linear(bad=(1, 4))
        train_op = model.minimize()
        if is_tensor:
            with tf.control_dependencies([train_op]):
                train_op = tf.identity(model.loss, name='loss_of_step')
        prefix = save(train_op, tmp_path)
        meta = prefix + '.meta'
        for draws in (3, 6):  # the second graph was imported and guarded once already
            with tf1.Graph().as_default(), tf1.Session() as session:
                saver = tf1.train.import_meta_graph(meta, import_scope=scope)
                saver.restore(session, prefix)
                (train_op,) = tf1.get_collection(tf1.GraphKeys.TRAIN_OP)
                assert 'slimguard/' in train_op.name
                values = [session.run(train_op) for _ in range(3)]
                assert not is_tensor or all(value > 0 for value in values[::2])
                (step,) = [v for v in tf1.global_variables() if v.op.name.endswith('global_step')]
                assert session.run(step) == 2
                assert model.batches.drawn == draws
                assert not non_finite(session)
                meta = str(tmp_path / 'again.meta')
                saver.export_meta_graph(meta)
    assert [record['action'] for record in records_in(tmp_path)] == ['skip', 'skip']


class WithoutCollections:
    """A weight, a mean and a train op in a graph by `import_graph_def`, so without collections.

    Attributes:
      graph: that graph.
    """

    def __init__(self, use_resource):
        with tf1.Graph().as_default() as made:
            x = tf1.placeholder(tf.float32, [2], name='x')
            with tf1.variable_scope('', use_resource=use_resource):
                weight = tf1.get_variable('w', initializer=[1.0, 3.0])
                mean = tf1.get_variable('mean', initializer=[0.5, 0.5], trainable=False)
            tf.identity(mean.assign(0.5 * mean + 0.5 * x), name='update')
            tf.identity(weight, name='weight')
            tf.identity(mean, name='the_mean')
            loss = tf.reduce_sum(x * weight)
            tf1.train.GradientDescentOptimizer(0.25).minimize(loss, name='train')
            tf.group(tf1.global_variables_initializer(), name='first')
        with tf1.Graph().as_default() as self.graph:
            tf1.import_graph_def(made.as_graph_def(), name='')
        assert not self.graph.get_all_collection_keys()

    def open(self):
        self.session = tf1.Session(graph=self.graph)
        self.session.run('first')

    def run(self, what, x=(1.0, 2.0)):
        self.session.run(what, {'x:0': x})

    def values(self):
        return np.concatenate(self.session.run(['weight:0', 'the_mean:0'])).tolist()


@pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])
def test_variables_that_no_collection_lists_are_guarded_and_given_back(use_resource, tmp_path):
    model = WithoutCollections(use_resource)
    with slimguard.instrument('rollback', logdir=tmp_path, capture=False):
        model.open()
        model.run('train')
        model.run('update')
        assert model.values() == [0.75, 2.5, 0.75, 1.25]
        model.run('train', (np.nan, 1.0))
        assert model.values() == [1.0, 3.0, 0.5, 0.5]
        model.run('update', (np.nan, 1.0))
        assert model.values() == [1.0, 3.0, 0.5, 0.5]
        model.session.close()
    assert [record['action'] for record in records_in(tmp_path)] == ['rollback'] * 2
