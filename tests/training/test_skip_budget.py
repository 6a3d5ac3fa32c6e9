"""A budget for skipping, and how many batches were skipped of how many: in every loop."""

import pytest
import tensorflow as tf

import slimguard
from slimguard import Skip
from tests.helpers.loops import LOOPS, Given, cells
from tests.helpers.models import Linear, LogLines, records_in

tf1 = tf.compat.v1

every_loop = pytest.mark.parametrize('loop', cells(LOOPS))
pytestmark = pytest.mark.usefixtures('ctrl_c_is_pythons')


def told(lines):
    return [
        line.partition('; why')[0].rstrip('.') for line in lines if 'batches were skipped' in line
    ]


@every_loop
def test_a_spent_budget_gives_way_and_the_end_says_how_many_were_skipped(loop, tmp_path):
    on_nan = [Skip(max_ratio=0.002), 'raise']
    why = '2 of the 5 steps before it were skipped, and max_ratio=0.002 allows no more'
    with LogLines() as lines, pytest.raises(slimguard.NanLossError, match=why):
        loop(Given(str(tmp_path), on_nan=on_nan, bad=(1, 3, 5)))
    assert told(lines) == ['slimguard: 2 of 6 batches were skipped']
    records = records_in(tmp_path)
    assert [each['action'] for each in records] == ['skip', 'skip', 'raise']
    assert [why in each['reason'] for each in records] == [False, False, True]


@every_loop
def test_a_good_end_says_it_too(loop, tmp_path):
    with LogLines() as lines:
        loop(Given(str(tmp_path), on_nan='skip', bad=(2, 3)))
    assert told(lines) == ['slimguard: 2 of 8 batches were skipped']


def test_where_nothing_was_skipped_nothing_is_said(tmp_path):
    with LogLines() as lines:
        LOOPS['watch'](Given(str(tmp_path), on_nan='skip'))
    assert not told(lines)


def test_a_run_past_the_hooks_counts_as_well(tmp_path):
    model = Linear(bad=(1, 2))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    inner = tf1.Session()
    with LogLines() as lines:
        with slimguard.watch(inner, on_nan='skip', logdir=tmp_path) as session:
            session.run(tf1.global_variables_initializer())
            session.run(train_op)
            session.run(train_op)
            inner.run(train_op)
    assert told(lines) == ['slimguard: 2 of 3 batches were skipped']
