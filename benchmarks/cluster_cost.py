"""What guarding costs a job of two asynchronous workers and a parameter server, as ratios.

    python benchmarks/cluster_cost.py [rounds]

Real processes on this machine. Each worker trains the same convnet several times over: with plain
slim, under slimguard, and with plain slim once more, each in a thread and a graph of its own. They
take turns: in each turn both workers do twenty steps of one kind. The time of a turn is divided by
that of plain slim's turn in the same round. The table has the median of the ratios, with quartiles.

What limits it: the network's round trips. slim's loop makes three a step, slimguard's one; the
decision of the gate is one more flag that goes to the parameter server.
"""

import os
import pathlib
import sys
import tempfile
import threading
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
sys.path.extend(str(folder) for folder in list(pathlib.Path(__file__).resolve().parents)[:2])

import measure
import numpy as np
import tensorflow as tf

import slimguard
from slimguard import compat
from tests.helpers.jobs import Job

slim = compat.import_slim()
tf1 = tf.compat.v1

STEPS_A_TURN = 20
KINDS = ('slim', 'slimguard', 'slim again')


class Training(threading.Thread):
    """A training that does `STEPS_A_TURN` steps in each of its turns."""

    def __init__(self, role, target, kind, logdir):
        threading.Thread.__init__(self, daemon=True)
        self._role, self._target, self._kind, self._logdir = role, target, kind, logdir
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._drawn = 0
        self._images = np.random.RandomState(role.task).rand(32, 16, 16, 3).astype(np.float32)

    def turn(self):
        """Runs the steps of a turn. Returns how many seconds they took."""
        start = time.perf_counter()
        self._go.release()
        self._done.acquire()
        return time.perf_counter() - start

    def _draw(self):
        if self._drawn % STEPS_A_TURN == 0:
            if self._drawn:
                self._done.release()
            self._go.acquire()
        self._drawn += 1
        return self._images

    def run(self):
        role, is_guarded = self._role, self._kind == 'slimguard'
        learning = slimguard.learning if is_guarded else slim.learning
        with tf.Graph().as_default(), role.device(), tf1.variable_scope(self._kind.split()[-1]):
            tf1.train.create_global_step()
            images = tf1.py_func(self._draw, [], tf.float32, stateful=True)
            images.set_shape(self._images.shape)
            net = slim.conv2d(images, 32, [3, 3], scope='conv1')
            net = slim.max_pool2d(net, [2, 2], scope='pool1')
            net = slim.conv2d(net, 64, [3, 3], scope='conv2')
            net = slim.fully_connected(slim.flatten(net), 64, scope='fc3')
            net = slim.fully_connected(net, 10, activation_fn=None, scope='logits')
            loss = tf.reduce_mean(tf.square(net - 1.0))
            train_op = learning.create_train_op(
                loss, tf1.train.MomentumOptimizer(1e-4, 0.9), check_numerics=not is_guarded
            )
            more = {'hooks': [slimguard.NanLossHook(loss)]} if is_guarded else {}
            if not role.is_chief:
                role.wait_for(self._kind)  # plain slim looks for the state twice a minute

            def ready(session):
                if role.is_chief:
                    role.post(self._kind)
                return session

            learning.train(
                train_op,
                self._logdir,
                master=self._target,
                is_chief=role.is_chief,
                number_of_steps=10**9,
                log_every_n_steps=10**6,
                save_interval_secs=10**6,
                save_summaries_secs=0,
                session_config=role.config(),
                init_fn=ready,
                **more,
            )


def work(role, rounds, folder):
    """A worker. Returns the seconds of each turn, by kind."""
    # Trainings that wait for their turn take threads, too.
    config = tf1.ConfigProto(inter_op_parallelism_threads=2 + len(KINDS))
    server = tf1.train.Server(role.cluster, role.job, role.task, config=config)
    trainings = {
        kind: Training(role, server.target, kind, os.path.join(folder, kind)) for kind in KINDS
    }
    for training in trainings.values():
        training.start()
    seconds = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        shift = number % len(KINDS)
        for kind in KINDS[shift:] + KINDS[:shift]:
            role.meet('%s %d' % (kind, number))
            taken = trainings[kind].turn()
            if number:  # the first one warms up
                seconds[kind].append(taken)
    return seconds


def main():
    measure.require_arguments(__doc__, takes_rounds=True)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    from benchmarks import cluster_cost  # the name that workers find it by

    with tempfile.TemporaryDirectory() as folder:
        with Job(cluster_cost.work, rounds, folder) as job:
            ended = job.wait_for_workers(timeout=60 + 10 * rounds)
    assert all(end.error is None for end in ended), ended
    taken = {kind: [sum(t) for t in zip(*[end.value[kind] for end in ended])] for kind in KINDS}
    rows = [('steps of two workers', 'throughput, of plain slim', 'a step')]
    for kind in KINDS:
        throughput = measure.ratio(taken[KINDS[0]], taken[kind])
        a_step = sorted(taken[kind])[rounds // 2] / len(ended) / STEPS_A_TURN
        rows.append((kind, throughput, '%.1f ms' % (1e3 * a_step)))
    print('TensorFlow %s, %d rounds: median (quartiles)\n' % (tf.__version__, rounds))
    print(measure.table(rows))


if __name__ == '__main__':
    tf1.disable_eager_execution()
    main()
