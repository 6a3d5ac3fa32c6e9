"""Copies of what is saved hold a moment, and are gone once they are written."""

import pytest
import tensorflow as tf

from slimguard.checkpoints.copied_values import CopiedValues

tf1 = tf.compat.v1

SOME = {'a': [1.0, 2.0], 'n': 3, 'yes': True, 'text': ['a', 'bc'], 'complex': 1j}


@pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])
def test_copies_stay_as_they_were_until_they_are_dropped(use_resource):
    variables = [
        tf1.get_variable(name, initializer=tf.constant(value), use_resource=use_resource)
        for name, value in SOME.items()
    ]
    saver = tf1.train.Saver(variables)
    save = tf1.get_default_graph().get_operation_by_name('save/SaveV2')
    values = list(save.inputs)[3:]
    copies = CopiedValues([save], lambda op: values)
    given = [copies.values[value.op, value.value_index] for value in values]
    (stage,) = [op for op in tf1.get_default_graph().get_operations() if op.type == 'Stage']
    kept = tf.raw_ops.StageSize(
        dtypes=stage.get_attr('dtypes'), shared_name=stage.get_attr('shared_name').decode()
    )
    change = variables[0].assign_add([10.0, 10.0]), variables[1].assign_add(1)
    del saver
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert copies.make(session, variables[1]) == 3
        assert copies.make(session, variables[1].name) == 3  # in place of those before
        session.run(change)
        assert session.run(kept) == 1
        by_name = dict(zip(sorted(SOME), session.run(given)))
        assert list(by_name['a']) == [1.0, 2.0] and by_name['n'] == 3 and by_name['yes']
        assert list(by_name['text']) == [b'a', b'bc'] and by_name['complex'] == 1j
        copies.drop(session)
        assert session.run(kept) == 0
        assert copies.make(session, 7) == 7
        assert session.run(given[sorted(SOME).index('n')]) == 4
