"""A wrong argument raises at the call, and the error names it; all that slim takes is taken."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import learning
from tests.helpers.models import Linear

tf1 = tf.compat.v1

NAN, INF = float('nan'), float('inf')


class Calls:
    """Calls the public functions with the arguments of a test, and a model for all others."""

    def __init__(self):
        self.model = Linear()
        self.train_op = self.create()

    def create(self, **arguments):
        arguments = {'total_loss': self.model.loss, 'optimizer': self.model.optimizer, **arguments}
        return slimguard.create_train_op(**arguments)

    def train(self, **arguments):
        given = dict(train_op=self.train_op, logdir=None, number_of_steps=2, log_every_n_steps=0)
        return slimguard.train(**{**given, **arguments})

    def hook(self, **arguments):
        return slimguard.NanLossHook(**{'loss_tensor': self.model.loss, **arguments})

    def watch(self, **arguments):
        return slimguard.watch(tf1.Session(), **arguments)

    def instrument(self, **arguments):
        return slimguard.instrument(**arguments)


@pytest.fixture
def calls():
    return Calls()


def assert_refused(calls, arguments, error, said):
    for call in calls:
        with pytest.raises(error, match=said):
            call(**arguments)


def test_by_create_train_op(calls):
    vector, integer = tf.constant([1.0]), tf.constant(1)
    for arguments, error, said in [
        ({'total_loss': None}, TypeError, 'total_loss must be a tf.Tensor.* None'),
        ({'total_loss': vector}, ValueError, r'total_loss.*shape \(1,\).*reduce it'),
        ({'total_loss': integer}, ValueError, 'total_loss.*floating scalar.*int32'),
        ({'optimizer': 'adam'}, TypeError, 'must be a tf.compat.v1.train.Optimizer, such as'),
        ({'optimizer': None}, TypeError, 'must be a tf.compat.v1.train.Optimizer, such as'),
        (
            {'optimizer': tf.keras.optimizers.SGD},
            TypeError,
            'must be a tf.compat.v1.train.Optimizer, such as',
        ),
    ]:
        assert_refused([calls.create], arguments, error, said)


def test_by_train(calls):
    for name, value, error, said in [
        ('is_chief', 'x', ValueError, 'must be True or False'),
        ('train_op', 'train', TypeError, 'must be a tf.Tensor'),
    ]:
        said = '^%s %s.*not %s$' % (name, said, re.escape(repr(value)))
        assert_refused([calls.train], {name: value}, error, said)
    for arguments, error, said in [
        ({'train_op': None}, ValueError, 'train_op cannot be None'),
        ({'saver': ['w']}, TypeError, r"saver must be a tf.compat.v1.train.Saver.* \['w'\]"),
        (
            {'train_op': 'logdir', 'logdir': calls.model.loss},
            TypeError,
            r'logdir must be a path \(str, bytes or',
        ),
        (
            {'hooks': [slimguard.NanLossHook]},
            TypeError,
            r'hooks has the class NanLossHook; make a hook of it: NanLossHook\(...\)',
        ),
        ({'on_nan': 'retry'}, ValueError, "on_nan: unknown policy 'retry'"),
        ({'on_nan': 'skip,,raise'}, ValueError, "on_nan: unknown policy '' in 'skip,,raise'"),
    ]:
        assert_refused([calls.train], arguments, error, said)


def test_a_mistyped_policy_is_told_at_the_door(calls):
    for call in (calls.train, calls.hook, calls.watch, calls.instrument):
        with pytest.raises(ValueError, match="unknown policy 'skipp' .did you mean") as said:
            call(on_nan='skipp')
        modules = [str(each.frame.f_globals.get('__name__')) for each in said.traceback]
        assert len([name for name in modules if name.startswith('slimguard.')]) <= 3


def test_by_each_loop(calls):
    train, hook, watch = calls.train, calls.hook, calls.watch
    for refusing, arguments, error, said in [
        ([train, watch], {'capture': 'no'}, ValueError, "capture must be True or False, not 'no'"),
        (
            [train, watch],
            {'hooks': 3},
            TypeError,
            'hooks must be a list of tf.train.SessionRunHooks, not 3',
        ),
        ([train], {'hooks': [1]}, TypeError, 'hooks must be tf.train.SessionRunHooks; 1 is none'),
        ([train, hook], {'progress': 'x'}, ValueError, "progress must be True or False, not 'x'"),
        ([train, hook], {'ends_job': 2}, ValueError, 'ends_job must be True or False, not 2'),
        ([hook], {'fail_on_nan_loss': 'x'}, ValueError, 'fail_on_nan_loss must be True or False'),
        ([hook], {'logdir': 3}, TypeError, 'logdir must be a path'),
        ([hook], {'logdir': ''}, ValueError, 'empty'),
        ([hook], {'loss_tensor': 3.0}, TypeError, 'loss_tensor must be a tf.Tensor.* 3.0'),
    ]:
        assert_refused(refusing, arguments, error, said)
    for value in (0, -1.0, NAN, INF, '5', True):
        said = 'max_loss must be a positive finite number or None, not %r' % (value,)
        assert_refused([train, hook, watch], {'max_loss': value}, ValueError, said)
    for value in (0, -1, True, 'many'):
        said = 'max_bundles must be an int, at least 1, not'
        assert_refused([train, hook], {'max_bundles': value}, ValueError, said)
    for value in (0, -1.0, NAN, INF, '10', None, True):
        said = 'preemption_seconds must be a positive finite number, .* not %r' % (value,)
        every = [train, hook, watch, calls.instrument]
        assert_refused(every, {'preemption_seconds': value}, ValueError, said)


def test_of_another_graph(calls):
    with tf.Graph().as_default():
        theirs = Calls()
    with pytest.raises(ValueError, match='another graph.*graph=...'):
        calls.train(train_op=theirs.train_op)
    with pytest.raises(ValueError, match='belongs to another graph'):
        with tf1.train.SingularMonitoredSession(hooks=[theirs.hook()]):
            pass


def test_a_hook_that_disagrees(calls):
    stops = calls.hook(fail_on_nan_loss=False, max_loss=1e9)
    with pytest.raises(ValueError, match="on_nan='skip' disagrees with the NanLossHook"):
        calls.train(hooks=[stops], on_nan='skip')
    with pytest.raises(ValueError, match='max_loss=6.0 disagrees.*1000000000.0'):
        calls.train(hooks=[stops], max_loss=6.0)
    calls.train(hooks=[stops], on_nan='stop', max_loss=1e9)


def own_step(session, train_op, global_step, kwargs):
    loss = session.run(train_op)
    return loss, session.run(global_step) >= kwargs['until']


@pytest.mark.full
def test_what_slim_takes_is_taken(tmp_path):
    for arguments in (
        lambda model: {'gradient_multipliers': {model.weights: 2.0}, 'clip_gradient_norm': -1},
        lambda model: {
            'gradient_multipliers': {model.weights.op.name: np.float32(2), 'frozen': 2.0},
            'variables_to_train': (model.weights,),
            'update_ops': [tf1.get_variable('frozen', []).initializer],
            'clip_gradient_norm': np.float32(0.5),
        },
        lambda model: {'check_numerics': np.bool_(True), 'clip_gradient_norm': np.int64(0)},
        lambda model: {
            'gradient_multipliers': {},
            'check_numerics': None,
            'global_step': tf1.train.get_or_create_global_step(),
            'update_ops': (),
        },
    ):
        with tf.Graph().as_default():
            model = Linear()
            slimguard.create_train_op(model.loss, model.optimizer, **arguments(model))
    for number, arguments in enumerate(
        (
            {
                'number_of_steps': np.int32(2),
                'log_every_n_steps': np.int64(1),
                'is_chief': np.bool_(True),
                'save_interval_secs': 0,
                'save_summaries_secs': None,
                'init_fn': lambda session: None,
            },
            {
                'train_step_fn': own_step,
                'train_step_kwargs': collections.OrderedDict(until=2),
                'number_of_steps': 2.0,
                'log_every_n_steps': None,
                'save_interval_secs': None,
                'save_summaries_secs': np.float32(0.5),
                'summary_writer': None,
            },
            {
                'train_step_fn': learning.train_step,
                'train_step_kwargs': 0,
                'summary_writer': 0,
                'log_every_n_steps': -1,
            },
        )
    ):
        logdir = str(tmp_path / str(number))
        with tf.Graph().as_default():
            assert np.isfinite(Calls().train(logdir=logdir, **arguments))
        assert tf1.train.latest_checkpoint(logdir).endswith('-2')
