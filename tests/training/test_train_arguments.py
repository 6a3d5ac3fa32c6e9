"""What `train` is given wrongly is named at the call; what slim takes, it takes."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import learning
from tests.helpers.models import Linear

tf1 = tf.compat.v1

NAN = float('nan')


def train(**arguments):
    model = Linear()
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    arguments = {'number_of_steps': 2, 'log_every_n_steps': 0, **arguments}
    return slimguard.train(train_op, arguments.pop('logdir', None), **arguments)


@pytest.mark.parametrize(
    ('name', 'value', 'error', 'said'),
    [
        ('summary_writer', 'x', TypeError, 'must be a tf.compat.v1.summary.FileWriter'),
        ('global_step', 'x', TypeError, 'must be the variable that counts steps'),
        ('global_step', np.int64(1), TypeError, 'must be the variable that counts steps'),
        ('init_fn', 'x', TypeError, 'must be a function of a session'),
        ('train_step_fn', 'x', TypeError, 'must be a function of session, train_op'),
        ('train_step_fn', None, TypeError, 'must be a function of session, train_op'),
        ('train_step_kwargs', 'x', TypeError, 'must be a dictionary'),
        ('train_step_kwargs', None, TypeError, 'must be a dictionary'),
        ('log_every_n_steps', 'x', ValueError, 'must be a number'),
        ('log_every_n_steps', 2.5, ValueError, 'must be an int'),
        ('number_of_steps', 2.5, ValueError, 'must be an int, the global step at which to end'),
        ('number_of_steps', 2.0, ValueError, 'must be an int, the global step at which to end'),
        ('number_of_steps', NAN, ValueError, 'must be an int, the global step at which to end'),
        ('number_of_steps', 0, ValueError, 'must be above 0, the global step at which to end'),
        ('number_of_steps', -1, ValueError, 'must be above 0, the global step at which to end'),
        ('is_chief', 'x', ValueError, 'must be True or False'),
        ('save_interval_secs', 'x', TypeError, 'must be a number of seconds'),
        ('save_summaries_secs', 'x', TypeError, 'must be a number of seconds'),
    ],
)
def test_an_argument_of_another_kind_is_named_with_its_value(name, value, error, said):
    match = '^%s %s.*not %s$' % (name, said, re.escape(repr(value)))
    with pytest.raises(error, match=match):
        train(**{name: value})


def test_seconds_are_no_nan():
    with pytest.raises(ValueError, match='save_interval_secs must be a number of seconds'):
        train(save_interval_secs=NAN)


def own_step(session, train_op, global_step, kwargs):
    loss = session.run(train_op)
    return loss, session.run(global_step) >= kwargs['until']


@pytest.mark.parametrize(
    'arguments',
    [
        {'number_of_steps': np.int32(2), 'log_every_n_steps': np.int64(1)},
        {'is_chief': np.bool_(True), 'save_interval_secs': 0, 'save_summaries_secs': None},
        {'save_interval_secs': None, 'save_summaries_secs': np.float32(0.5)},
        {'summary_writer': None, 'init_fn': lambda session: None, 'log_every_n_steps': -1},
        {
            'train_step_fn': own_step,
            'train_step_kwargs': collections.OrderedDict(until=2),
            'number_of_steps': 2.0,
            'log_every_n_steps': None,
        },
        {'log_every_n_steps': None},
        {'train_step_fn': learning.train_step, 'train_step_kwargs': 0, 'summary_writer': 0},
    ],
)
def test_what_slim_takes_is_taken(arguments, tmp_path):
    assert np.isfinite(train(logdir=str(tmp_path), **arguments))
    assert tf1.train.latest_checkpoint(str(tmp_path)).endswith('-2')
