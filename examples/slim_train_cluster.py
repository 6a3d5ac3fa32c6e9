"""Trains the digits of slim_train.py on parameter servers and workers, under slimguard.

Start each process with its place in the cluster, as flags or in the environment's TF_CONFIG.
The first worker is the chief: it saves, and prints the result. Its command is:

  python examples/slim_train_cluster.py --logdir=/tmp/digits --ps_hosts=localhost:2220 \
    --worker_hosts=localhost:2221,localhost:2222 --job_name=worker --task_index=0

Copy `train`: a cluster needs only the arguments that it passes to `slimguard.train`.
"""

import argparse
import json
import os
import re
import sys
from typing import Dict, List, NamedTuple, Optional

import slim_train  # beside this file: the input, the model, the report
import tensorflow as tf

import slimguard

tf1 = tf.compat.v1


class Place(NamedTuple):
    """The place of this process in its cluster."""

    cluster: Dict[str, List[str]]  # addresses, by job
    job: str
    task: int

    @property
    def workers(self):
        """The (job, task) of all processes that train, the chief first."""
        jobs = [job for job in ('chief', 'master', 'worker') if job in self.cluster]
        return [(job, task) for job in jobs for task in range(len(self.cluster[job]))]

    @property
    def number(self):
        """The index of this worker in `workers`; 0 is the chief."""
        return self.workers.index((self.job, self.task))

    @property
    def device(self):
        return '/job:%s/task:%d' % (self.job, self.task)

    def device_setter(self):
        """Puts variables on the parameter servers, and the rest on this worker."""
        return tf1.train.replica_device_setter(
            cluster=tf1.train.ClusterSpec(self.cluster), worker_device=self.device
        )

    def start_server(self):
        """Starts the server of this process, which has to run as long as the training."""
        spec = tf1.train.ClusterSpec(self.cluster)
        return tf1.train.Server(spec, job_name=self.job, task_index=self.task)


def train(place, args, images, labels):
    """Trains as this worker of the cluster. Returns the incidents, and the error, if any."""
    with tf.Graph().as_default(), tf1.device(place.device_setter()):
        tf1.set_random_seed(1)
        images, labels = slim_train.next_batch(
            images, labels, seed=1 + place.number, nan_every=args.nan_every
        )
        logits = slim_train.digits_net(images, is_training=True)
        tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        total_loss = tf1.losses.get_total_loss()
        optimizer = tf1.train.MomentumOptimizer(0.02, 0.9)
        if args.sync:
            number = len(place.workers)
            optimizer = tf1.train.SyncReplicasOptimizer(optimizer, number, number)
        train_op = slimguard.create_train_op(total_loss, optimizer, check_numerics=False)
        guard = slimguard.NanLossHook(total_loss, on_nan=args.on_nan)
        try:
            slimguard.train(
                train_op,
                args.logdir,
                number_of_steps=args.steps,
                log_every_n_steps=100,
                hooks=[guard],
                master=place.start_server().target,
                is_chief=place.number == 0,
                sync_optimizer=optimizer if args.sync else None,
                # Without the filter, a session waits for all other workers when it starts and ends.
                session_config=tf1.ConfigProto(device_filters=['/job:ps', place.device]),
            )
        except slimguard.NanLossError as error:
            return guard.incidents, error
        return guard.incidents, None


def parser():
    parser = argparse.ArgumentParser()
    parser.add_argument('--logdir', help='for checkpoints: the same directory for all workers')
    parser.add_argument('--steps', type=int, default=600, help='the global step to train to')
    parser.add_argument('--nan_every', type=int, default=0, help='damage every N-th batch')
    parser.add_argument('--on_nan', default='raise', help='raise, stop, skip, rollback')
    parser.add_argument('--sync', action='store_true', help='average the gradients of all workers')
    parser.add_argument('--job_name', help='the job of this process: ps or worker')
    parser.add_argument('--task_index', type=int, help='the number of this process in its job')
    parser.add_argument('--ps_hosts', help='the parameter servers, as host:port,...')
    parser.add_argument('--worker_hosts', help='the workers, as host:port,...')
    return parser


class PlaceError(ValueError):
    """The place of this process is not known; the message says what to give."""


def require(condition, complaint):
    if not condition:
        raise PlaceError(complaint)


def read_tf_config():
    """Returns the cluster and the task of this process from TF_CONFIG; empty dicts if not set."""
    try:
        config = json.loads(os.environ.get('TF_CONFIG') or '{}')
        return dict(config.get('cluster', {})), dict(config.get('task', {}))
    except (AttributeError, TypeError, ValueError) as error:
        raise PlaceError('TF_CONFIG in the environment cannot be read: %s' % error) from error


def require_addresses(cluster):
    for name, addresses in cluster.items():
        for address in addresses if isinstance(addresses, list) else [addresses]:
            require(
                isinstance(addresses, list) and re.match(r'.+:\d+$', str(address)),
                '%r is no list of addresses for the job %s; expected host:port,...'
                % (addresses, name),
            )


def find_place(args):
    """Returns the Place. The flags come first; TF_CONFIG has what they leave out."""
    cluster, task = read_tf_config()
    hosts = {'ps': args.ps_hosts, 'worker': args.worker_hosts}
    cluster.update({job: given.split(',') for job, given in hosts.items() if given})
    require_addresses(cluster)
    job: Optional[str] = args.job_name or task.get('type')
    index = task.get('index', 0) if args.task_index is None else args.task_index
    require(cluster, 'this is for a cluster: give --ps_hosts and --worker_hosts, or TF_CONFIG')
    require(cluster.get('ps'), 'a cluster needs parameter servers: give --ps_hosts=host:port,...')
    place = Place(cluster, str(job), index)
    require(place.workers, 'a cluster needs workers: give --worker_hosts=host:port,...')
    jobs = ['ps'] + sorted({job for job, _ in place.workers})
    require(
        job in jobs,
        '--job_name=%s is no job of the cluster; expected one of %s' % (job, ', '.join(jobs)),
    )
    require(
        index in range(len(cluster[place.job])),
        '--task_index=%s is none of the %d addresses of the job %s; they count from 0'
        % (index, len(cluster[place.job]), job),
    )
    require(
        job == 'ps' or args.logdir,
        'on a cluster --logdir is needed, the same directory for all workers',
    )
    return place


def main(arguments=None):
    flags = parser()
    args = flags.parse_args(arguments)
    try:
        place = find_place(args)
    except PlaceError as error:
        flags.error(str(error))
    if place.job == 'ps':
        place.start_server().join()  # it never ends by itself
    train_data, test_data = slim_train.load_data()
    incidents, error = train(place, args, *train_data)
    if place.number:
        outcome = type(error).__name__ if error else 'ended'
        print('worker %d: %s; incidents: %d' % (place.number, outcome, len(incidents)))
        return int(error is not None)
    return slim_train.report(args.logdir, incidents, error, test_data)


if __name__ == '__main__':
    tf1.disable_v2_behavior()
    tf1.logging.set_verbosity(tf1.logging.INFO)
    tf1.get_logger().propagate = False  # else absl prints each of its lines a second time
    sys.exit(main())
