"""What the error that ends a training advises: what may help with what was found, and no more."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.incidents import advice

tf1 = tf.compat.v1

GOOD = np.ones([4, 2], np.float32)
LARGE, NAN, NEGATIVE = GOOD * 1e3, GOOD.copy(), GOOD.copy()
NAN[2, 1], NEGATIVE[2] = np.nan, -1

EXPLODES = "if this training explodes, go back and go on with a smaller learning rate (on_nan='rol"
BY_LESS = "by a smaller factor than 0.5 (on_nan='rollback:3x0.2'"
IS_DATA = (
    "the data are bad, and going back does not mend them: on_nan='skip', or --on_nan=skip, leave"
)
IS_BATCH = "it depends on the batch, and going back does not mend it: on_nan='skip'"


@pytest.mark.full
@pytest.mark.every_cell
@pytest.mark.parametrize(
    'on_nan, batch, says',
    [
        ('raise', LARGE, EXPLODES),
        ('rollback:1x0.5', LARGE, BY_LESS),
        ('rollback:1', NAN, IS_DATA),
        ('rollback:1', NEGATIVE, IS_BATCH),
        ('raise', NAN, None),  # nobody went back, and the diagnosis has it all
        ('raise', NEGATIVE, None),
    ],
)
def test_the_error_advises_what_fits_the_cause_and_the_policy(on_nan, batch, says, tmp_path):
    x = tf1.placeholder(tf.float32, [4, 2])
    weights = tf1.get_variable('w', [2, 1], initializer=tf1.ones_initializer())
    loss = tf.reduce_mean(tf.sqrt(tf.matmul(x, weights)))
    train_op = tf1.train.GradientDescentOptimizer(0.01).minimize(
        loss, tf1.train.get_or_create_global_step()
    )
    train_op = slimguard.guard(train_op, loss=loss)
    start = tf1.global_variables_initializer()
    with pytest.raises(slimguard.NanLossError) as caught:
        options = {'max_loss': 10.0, 'logdir': tmp_path, 'max_bundles': 1}
        with slimguard.watch(tf1.Session(), on_nan=on_nan, **options) as watched:
            watched.run(start)
            for given in (GOOD, GOOD, batch, GOOD, batch):
                watched.run(train_op, {x: given})
    told = caught.value.incident.advice
    assert told is None if says is None else says in told
    others = {EXPLODES, BY_LESS, IS_DATA, IS_BATCH} - {says}
    assert not [each for each in others if each in str(caught.value)]


def test_who_skips_already_is_not_told_to():
    for of_data in (True, False):
        told = [
            advice.for_bad_data([2], None, skips) if of_data else advice.for_a_bad_batch(skips)
            for skips in (True, False)
        ]
        assert [each.endswith('leaves out such a batch') for each in told] == [False, True]


def test_who_goes_back_already_is_not_told_to():
    told = [advice.for_lost_state(goes_back) for goes_back in (True, False)]
    assert ["on_nan='rollback'" in each for each in told] == [False, True]
