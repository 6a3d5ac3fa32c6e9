"""A pytest plugin that puts slimguard's functions in the place of tf-slim's, for tf-slim's tests.

`pytest -p slim_replaced tf_slim/learning_test.py` runs tf-slim's own tests against slimguard.
"""

import functools

import slimguard
from slimguard import compat, learning

slim = compat.import_slim()


def _guarding(create_train_op):
    @functools.wraps(create_train_op)
    def create(*args, **kwargs):
        return slimguard.guard(create_train_op(*args, **kwargs))

    return create


slim.learning.create_train_op = learning.create_train_op
slim.learning.train = learning.train
slim.training.create_train_op = _guarding(slim.training.create_train_op)
