"""Trains on each rank of a Horovod job, through one case after the other; each rank says how.

    horovodrun --gloo -np 2 -H localhost:2 python tests/programs/horovod_ranks.py FOLDER [CASE...]

Each rank writes FOLDER/rank<N>.json: by case, what it saw. Without cases, all of `CASES` are run;
the last of them ends both processes by SIGTERM, in a step that FOLDER/draws<N> tells.
"""

import hashlib
import json
import os
import signal
import sys
import time
from typing import Any, Dict, NamedTuple

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf1

import slimguard
from slimguard import gate as gates

STEPS = 30


class Case(NamedTuple):
    """What is bad on rank 1, at which draws of its batches, and the policy."""

    bad: str
    at: Any = (5,)
    on_nan: Any = 'skip'
    settings: Dict[str, Any] = {}
    door: str = 'hook'
    optimizer: Dict[str, Any] = {}
    at_0: Any = ()  # the draws of rank 0 at which it gets a signal
    resumes: str = ''  # the case whose checkpoints it goes on from
    steps: int = STEPS


SPIKE = {'spike': slimguard.Spike(loss=10.0, gradient_norm=None, warmup=5)}
CASES = {
    'nan': Case('batch'),
    'loss': Case('loss', (5, 6, 12)),
    'average': Case('average', (5,)),
    'max_loss': Case('large', (5, 9), settings={'max_loss': 1e4}),
    'spikes': Case('large', (14, 15), settings=SPIKE),
    'raise': Case('loss', on_nan='raise'),
    'stop': Case('loss', on_nan='stop'),
    'rollback late': Case('loss', (22,), on_nan='rollback:2x0.5'),
    'rollback early': Case('loss', (2,), on_nan='rollback'),
    'restart': Case('nothing', on_nan='rollback:2x0.5', resumes='rollback late', steps=40),
    'none': Case('nothing'),
    'train': Case('loss', (5,), door='train'),
    'plain session': Case('batch', (5,), door='session'),
    'fp16': Case('batch', optimizer={'compression': hvd.Compression.fp16}),
    'micro-batches': Case('batch', optimizer={'backward_passes_per_step': 2}),
    'sparse': Case('rows'),
    'Ctrl-C': Case('SIGINT', (7,)),
    'Ctrl-C in train': Case('SIGINT', (7,), door='train', at_0=(8,)),
    'other graph': Case('graph'),
    # These cases come last, since `instrument` changes TensorFlow.
    'unedited': Case('loss', (5, 6), door='unedited'),
    'unedited Ctrl-C': Case('SIGINT', (12,), door='unedited'),
    'SIGTERM': Case('SIGTERM', (12,), door='unedited'),
}


class SlowSaver(tf1.train.Saver):
    """Saves the last state for longer than a launcher lets a rank go on once another has ended."""

    def save(self, sess, save_path, global_step=None, *args, **kwargs):
        if global_step > 12:
            time.sleep(7)
        return tf1.train.Saver.save(self, sess, save_path, global_step, *args, **kwargs)


class Model:
    """A linear model with a moving average of its own; and a step.

    Attributes:
      case: the case.
      draw: how many batches were drawn.
    """

    def __init__(self, case, folder):
        self.case, self.draw = case, 0
        self._told_in = os.path.join(folder, 'draws%d' % hvd.rank())
        x, loss_offset, given = tf1.py_func(self._batch, [], [tf1.float32] * 3, stateful=True)
        x.set_shape([4, 3])
        start = tf1.constant_initializer(1.0 + hvd.rank())  # rank 0's is broadcast
        if case.bad == 'rows':
            table = tf1.get_variable('w', [6, 1], initializer=start)
            net = tf1.reduce_sum(tf1.gather(table, [0, 2, 4]) * tf1.transpose(x)[:, :1])
        else:
            w = tf1.get_variable('w', [3, 1], initializer=start)
            net = tf1.matmul(x, w)
        average = tf1.get_variable('average', [], trainable=False, initializer=start)
        self.loss = tf1.reduce_mean(tf1.square(net - 1.0)) + tf1.reshape(loss_offset, [])
        self.loss = tf1.identity(self.loss, 'total_loss')
        self.step = tf1.train.get_or_create_global_step()
        optimizer = tf1.train.MomentumOptimizer(0.005, 0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, **(case.optimizer or {}))
        update = average.assign(0.9 * average + 0.1 * tf1.reshape(given, []))
        updates = [update]
        if case.bad == 'graph' and hvd.rank() == 1:  # a local variable, as the others are broadcast
            local = [tf1.GraphKeys.LOCAL_VARIABLES]
            more = tf1.get_variable(
                'more', [], trainable=False, initializer=start, collections=local
            )
            updates.append(more.assign(tf1.reshape(given, [])))
        with tf1.control_dependencies(updates):
            self.train_op = optimizer.minimize(self.loss, global_step=self.step)

    def _batch(self):
        draw, self.draw = self.draw, self.draw + 1
        x = np.random.RandomState(1000 * hvd.rank() + draw).rand(4, 3).astype(np.float32)
        offset, given = np.zeros(1, np.float32), np.ones(1, np.float32)
        if self.case.bad == 'SIGTERM':
            with open(self._told_in, 'w') as file:
                file.write(str(self.draw))
        at = self.case.at if hvd.rank() == 1 else self.case.at_0
        if draw in at:
            if self.case.bad.startswith('SIG'):
                os.kill(os.getpid(), getattr(signal, self.case.bad))
            if self.case.bad in ('batch', 'rows'):
                x[2, 1] = x[0, 0] = np.nan
            if self.case.bad == 'loss':
                offset[:] = np.nan
            if self.case.bad == 'average':
                given[:] = np.inf
            if self.case.bad == 'large':
                offset[:] = 1e6
        return x, offset, given


class Digest(tf1.train.SessionRunHook):
    """The bits of the weights at the end, or before an error."""

    def __init__(self):
        self.bits, self.step, self.factor = '', -1, None

    def after_run(self, run_context, run_values):
        self.look(run_context.session)

    def look(self, session):
        graph = session.graph
        with graph.as_default():
            shared = [v for v in tf1.global_variables() if not v.op.name.startswith('average')]
            values = session.run(shared + [tf1.train.get_global_step()])
        rates = gates.learning_rates_of(graph)
        self.factor = None if rates is None else rates.get(session)
        self.step = int(values.pop())
        self.bits = hashlib.md5(b''.join(map(np.ndarray.tobytes, map(np.asarray, values))))
        self.bits = self.bits.hexdigest()


def run(name, case, folder):
    """Runs a case; returns its results."""
    digest, error = Digest(), ''
    name = (case.resumes or name).replace(' ', '_')
    logdir = os.path.join(folder, name) if hvd.rank() == 0 else None
    if case.door == 'unedited':
        slimguard.instrument(on_nan=case.on_nan)
    with tf1.Graph().as_default():
        model = Model(case, folder)
        hook = slimguard.NanLossHook(model.loss, on_nan=case.on_nan, logdir=logdir, **case.settings)
        hooks = [digest, tf1.train.StopAtStepHook(last_step=case.steps), hook]
        try:
            DOORS[case.door](model, hooks, logdir, digest)
        except slimguard.NanLossError as raised:
            error = '%s: %s' % (type(raised).__name__, raised.incident.reason)
        except KeyboardInterrupt:
            error = 'KeyboardInterrupt'
        except tf1.errors.InvalidArgumentError as raised:
            error = raised.message.split('\n')[0]
    return {
        'bits': digest.bits,
        'step': digest.step,
        'error': error,
        'factor': digest.factor,
        'draws': model.draw,
        'incidents': [
            [each.step, each.reason, each.action, each.diagnosis, each.restored]
            for each in hook.incidents
        ],
    }


def in_monitored_session(model, hooks, logdir, digest):
    train_op = slimguard.guard(model.train_op, loss=model.loss)
    hooks = [*hooks, hvd.BroadcastGlobalVariablesHook(0)]
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=logdir, hooks=hooks, save_checkpoint_steps=10
    ) as session:
        while not session.should_stop():
            session.run(train_op)


def in_train(model, hooks, logdir, digest):
    with tf1.control_dependencies([model.train_op]):
        train_op = tf1.identity(model.loss)
    hooks = [*hooks, hvd.BroadcastGlobalVariablesHook(0)]
    slimguard.train(train_op, logdir, hooks=hooks, number_of_steps=STEPS, log_every_n_steps=0)


def in_plain_session(model, hooks, logdir, digest):
    train_op = slimguard.guard(model.train_op, loss=model.loss)
    broadcast = hvd.broadcast_global_variables(0)
    with tf1.Session() as session:
        watched = slimguard.watch(session, hooks=hooks[2:])
        session.run(tf1.global_variables_initializer())
        session.run(broadcast)
        for _ in range(STEPS):
            watched.run(train_op)
        digest.look(session)


def unedited(model, hooks, logdir, digest):
    hooks = [*hooks[:2], hvd.BroadcastGlobalVariablesHook(0)]
    is_slow = model.case.bad == 'SIGTERM'
    scaffold = tf1.train.Scaffold(saver=SlowSaver() if is_slow else None)
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=logdir, scaffold=scaffold, hooks=hooks, save_checkpoint_steps=10
    ) as session:
        while not session.should_stop():
            session.run(model.train_op)


DOORS = {
    'hook': in_monitored_session,
    'train': in_train,
    'session': in_plain_session,
    'unedited': unedited,
}


def main(folder, *names):
    tf1.disable_eager_execution()
    hvd.init()
    results = {}
    for name in names or CASES:
        results[name] = run(name, CASES[name], folder)
        with open(os.path.join(folder, 'rank%d.json' % hvd.rank()), 'w') as file:
            json.dump(results, file, indent=1)


if __name__ == '__main__':
    main(*sys.argv[1:])
