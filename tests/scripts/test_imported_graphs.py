"""A graph that was saved under a guard, and is imported by a script that is guarded in its turn."""

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


@pytest.mark.parametrize('scope', [None, 'imported'])
@pytest.mark.parametrize('is_tensor', [False, True])
def test_a_train_op_that_was_saved_behind_its_gate_is_guarded(tmp_path, is_tensor, scope):
    with slimguard.instrument('skip', logdir=tmp_path, capture=False):
        model = Linear(bad=(1, 4))
        train_op = model.minimize()
        if is_tensor:
            with tf.control_dependencies([train_op]):
                train_op = tf.identity(model.loss, name='loss_of_step')
        prefix = save(train_op, tmp_path)
        meta = prefix + '.meta'
        for draws in (3, 6):  # the second time one that was imported and guarded before
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
