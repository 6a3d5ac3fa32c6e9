"""Trains a small TF-Slim convnet on handwritten digits, under slimguard.

The input can damage itself: with --nan_every=N one pixel of every N-th batch is
NaN, as a broken file or a division by zero would leave it. Guarded, the bad
batches change nothing; with --stock the same run goes through plain tf-slim:

  python examples/slim_train.py --nan_every=10 --on_nan=skip
  python examples/slim_train.py --nan_every=10 --stock

At the end the newest checkpoint is evaluated on digits the training never saw.

On a cluster each process is started with its place in it, as flags or in the
environment's TF_CONFIG. The first worker is the chief, who prints the result:

  python examples/slim_train.py --logdir=/tmp/digits --ps_hosts=localhost:2220 \
    --worker_hosts=localhost:2221,localhost:2222 --job_name=worker --task_index=0
"""

import json
import os
import re
import tempfile
from typing import Dict, List, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tf_slim as slim
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

# Also puts back what tf-slim needs and newer TensorFlow dropped (batch norm, for
# one), so the plain run below needs this line too.
import slimguard

tf1 = tf.compat.v1

FLAGS = flags.FLAGS
flags.DEFINE_string('logdir', None, 'Where checkpoints and summaries go; default: a new directory.')
flags.DEFINE_integer('steps', 600, 'The global step to train to.', lower_bound=1)
flags.DEFINE_integer('batch_size', 32, 'Images per step.', lower_bound=1)
flags.DEFINE_float('learning_rate', 0.02, 'Of the momentum optimizer.', lower_bound=0.0)
flags.DEFINE_integer('seed', 1, 'Of the initial weights, the dropout and the order of the images.')
flags.DEFINE_integer(
    'nan_every', 0, 'Turn one pixel of every N-th batch into NaN; 0: never.', lower_bound=0
)
flags.DEFINE_string('on_nan', 'raise', 'What follows a bad step: raise, stop, skip, ...')
flags.DEFINE_bool(
    'check_numerics', False, "Let TensorFlow's own check raise, instead of watching the loss."
)
flags.DEFINE_float('max_loss', None, 'A loss above this is a bad step too; default: no limit.')
flags.DEFINE_bool('stock', False, 'Train with plain tf-slim; --on_nan and --max_loss do nothing.')
flags.DEFINE_string('job_name', None, 'On a cluster, the job of this process: ps or worker.')
flags.DEFINE_integer('task_index', None, 'The number of this process in its job.', lower_bound=0)
flags.DEFINE_list('ps_hosts', None, 'The addresses of the parameter servers, as host:port.')
flags.DEFINE_list('worker_hosts', None, 'The addresses of the workers, as host:port.')
flags.DEFINE_bool('sync', False, 'On a cluster, average the gradients of all workers in each step.')


class Place(NamedTuple):
    """Where this process stands in its cluster; the defaults are for a process on its own."""

    cluster: Optional[Dict[str, List[str]]] = None  # addresses, by job
    job: str = 'worker'
    task: int = 0

    @property
    def workers(self):
        """The (job, task) of all that train, the chief first."""
        jobs = [job for job in ('chief', 'master', 'worker') if job in self.cluster]
        return [(job, task) for job in jobs for task in range(len(self.cluster[job]))]

    @property
    def number(self):
        """Of this worker; 0 is the chief."""
        return self.workers.index((self.job, self.task)) if self.cluster else 0

    @property
    def device(self):
        return '/job:%s/task:%d' % (self.job, self.task)

    def device_setter(self):
        """Puts variables on the parameter servers, and the rest on this worker."""
        if not self.cluster:
            return None
        return tf1.train.replica_device_setter(
            cluster=tf1.train.ClusterSpec(self.cluster), worker_device=self.device
        )

    def start_server(self):
        """Returns the server, which has to run as long as this process is in use."""
        spec = tf1.train.ClusterSpec(self.cluster)
        return tf1.train.Server(spec, job_name=self.job, task_index=self.task)


def require(condition, complaint):
    if not condition:
        raise app.UsageError(complaint)


def read_tf_config():
    """Returns the cluster and the task of this process that the environment gives, if any."""
    try:
        config = json.loads(os.environ.get('TF_CONFIG') or '{}')
        cluster, task = dict(config.get('cluster', {})), dict(config.get('task', {}))
    except (AttributeError, TypeError, ValueError) as error:
        raise app.UsageError('TF_CONFIG in the environment cannot be read: %s' % error) from error
    return cluster, task


def find_place():
    """Returns the Place that the flags give, and TF_CONFIG where they say nothing."""
    cluster, task = read_tf_config()
    hosts = {'ps': FLAGS.ps_hosts, 'worker': FLAGS.worker_hosts}
    cluster.update({job: addresses for job, addresses in hosts.items() if addresses})
    job = FLAGS.job_name or task.get('type')
    index = task.get('index', 0) if FLAGS.task_index is None else FLAGS.task_index
    if not cluster:
        require(
            FLAGS.job_name is None and FLAGS.task_index is None and not FLAGS.sync,
            '--job_name, --task_index and --sync are for a cluster; give its addresses as well, '
            'with --ps_hosts and --worker_hosts',
        )
        return Place()
    for name, addresses in cluster.items():
        for address in addresses if isinstance(addresses, list) else [addresses]:
            require(
                isinstance(addresses, list) and re.match(r'.+:\d+$', str(address)),
                '%r is no list of addresses for the job %s; expected host:port,...'
                % (addresses, name),
            )
    place = Place(cluster, job, index)
    require(cluster.get('ps'), 'a cluster needs parameter servers: give --ps_hosts=host:port,...')
    require(place.workers, 'a cluster needs workers: give --worker_hosts=host:port,...')
    jobs = ['ps'] + sorted({job for job, _ in place.workers})
    require(
        job in jobs,
        '--job_name=%s is no job of the cluster; expected one of %s' % (job, ', '.join(jobs)),
    )
    require(
        index in range(len(cluster[job])),
        '--task_index=%s is none of the %d addresses of the job %s; they count from 0'
        % (index, len(cluster[job]), job),
    )
    require(
        job == 'ps' or FLAGS.logdir,
        'on a cluster --logdir is needed, the same directory for all workers',
    )
    return place


def load_data():
    """Returns (images, labels) to train on and (images, labels) held out, pixels in [0, 1]."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16.0
    labels = digits.target.astype(np.int64)
    # Always the same split, whatever --seed says: accuracies stay comparable.
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.25, random_state=0, stratify=labels
    )
    return (train_images, train_labels), (test_images, test_labels)


def next_batch(images, labels, seed):
    """Returns the tensors of the next training batch."""

    def damage(index, batch):
        images, labels = batch
        is_bad = tf.equal(index % FLAGS.nan_every, 0)
        noise = tf.where(is_bad, np.float32('nan'), np.float32(0))
        images += tf.scatter_nd([[0, 4, 4, 0]], [noise], tf.shape(images))
        return images, labels

    dataset = tf1.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(len(labels), seed=seed).repeat()
    dataset = dataset.batch(FLAGS.batch_size, drop_remainder=True)
    if FLAGS.nan_every:
        dataset = dataset.enumerate(start=1).map(damage)
    return tf1.data.make_one_shot_iterator(dataset.prefetch(1)).get_next()


def digits_net(images, is_training):
    """Returns the logits, [batch, 10]."""
    batch_norm = {'is_training': is_training, 'decay': 0.9}
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        normalizer_fn=slim.batch_norm,
        normalizer_params=batch_norm,
    ):
        net = slim.conv2d(images, 32, [3, 3], scope='conv1')
        net = slim.max_pool2d(net, [2, 2], scope='pool1')
        net = slim.conv2d(net, 64, [3, 3], scope='conv2')
        net = slim.max_pool2d(net, [2, 2], scope='pool2')
        net = slim.flatten(net)
        net = slim.fully_connected(net, 64, scope='fc3')
    net = slim.dropout(net, 0.5, is_training=is_training, scope='dropout3')
    return slim.fully_connected(net, 10, activation_fn=None, scope='logits')


def make_optimizer(place):
    optimizer = tf1.train.MomentumOptimizer(FLAGS.learning_rate, 0.9)
    if not FLAGS.sync:
        return optimizer
    number = len(place.workers)
    return tf1.train.SyncReplicasOptimizer(optimizer, number, total_num_replicas=number)


def arguments_of(place, optimizer):
    """Returns the keyword arguments of train() that a cluster asks for."""
    if not place.cluster:
        return {}
    return {
        'master': place.start_server().target,
        'is_chief': place.number == 0,
        'sync_optimizer': optimizer if FLAGS.sync else None,
        # Else a session waits for all other workers, at its start and at its end.
        'session_config': tf1.ConfigProto(device_filters=['/job:ps', place.device]),
    }


def train_guarded(total_loss, optimizer, logdir, **kwargs):
    """Trains under slimguard. Returns the outcome in words, and the incidents."""
    hook = slimguard.NanLossHook(total_loss, on_nan=FLAGS.on_nan, max_loss=FLAGS.max_loss)
    train_op = slimguard.create_train_op(total_loss, optimizer, check_numerics=FLAGS.check_numerics)
    try:
        loss = slimguard.train(
            train_op,
            logdir,
            number_of_steps=FLAGS.steps,
            log_every_n_steps=100,
            hooks=[hook],
            **kwargs,
        )
        outcome = 'ended, no step left' if loss is None else 'ended, last loss %.4f' % loss
    except slimguard.NanLossError as error:
        outcome = 'NanLossError: %s' % error.incident.reason
    return outcome, hook.incidents


def train_stock(total_loss, optimizer, logdir, **kwargs):
    """Trains with plain tf-slim. Returns the outcome in words."""
    train_op = slim.learning.create_train_op(
        total_loss, optimizer, check_numerics=FLAGS.check_numerics
    )
    try:
        loss = slim.learning.train(
            train_op, logdir, number_of_steps=FLAGS.steps, log_every_n_steps=100, **kwargs
        )
        return 'ended, last loss %.4f' % loss
    except tf.errors.InvalidArgumentError as error:  # what its check_numerics raises
        return 'InvalidArgumentError: %s' % error.message.splitlines()[0]


def evaluate(images, labels, checkpoint):
    """Returns the checkpoint's accuracy on the given images."""
    with tf.Graph().as_default(), tf1.Session() as session:
        predictions = tf.argmax(digits_net(tf.constant(images), is_training=False), axis=1)
        tf1.train.Saver().restore(session, checkpoint)
        return np.mean(session.run(predictions) == labels)


def count_non_finite(checkpoint):
    """Returns how many of the checkpoint's float variables hold a NaN or Inf."""
    reader = tf1.train.load_checkpoint(checkpoint)
    dtypes = reader.get_variable_to_dtype_map()
    floats = [name for name, dtype in dtypes.items() if dtype.is_floating]
    return sum(not np.isfinite(reader.get_tensor(name)).all() for name in floats)


def main(_):
    place = find_place()
    if place.job == 'ps':
        place.start_server().join()  # it never ends by itself
    logdir = FLAGS.logdir or tempfile.mkdtemp(prefix='slim_train_')
    train_data, test_data = load_data()

    with tf.Graph().as_default(), tf1.device(place.device_setter()):
        tf1.set_random_seed(FLAGS.seed)
        images, labels = next_batch(*train_data, seed=FLAGS.seed + place.number)
        logits = digits_net(images, is_training=True)
        tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        total_loss = tf1.losses.get_total_loss()
        optimizer = make_optimizer(place)
        kwargs = arguments_of(place, optimizer)
        if FLAGS.stock:
            outcome = train_stock(total_loss, optimizer, logdir, **kwargs)
            seen = skipped = 'not watched'
        else:
            outcome, incidents = train_guarded(total_loss, optimizer, logdir, **kwargs)
            seen = len(incidents)
            skipped = sum(incident.action == 'skip' for incident in incidents)

    if place.number:
        print('worker %d: %s; incidents: %s' % (place.number, outcome, seen))
        return
    checkpoint = tf1.train.latest_checkpoint(logdir)
    rows = [
        ('outcome', outcome),
        ('checkpoint', checkpoint),
        ('steps', tf1.train.load_variable(checkpoint, 'global_step')),
        ('incidents', seen),
        ('skipped', skipped),
        ('test accuracy', '%.3f' % evaluate(*test_data, checkpoint=checkpoint)),
        ('non-finite variables', count_non_finite(checkpoint)),
    ]
    print()
    for name, value in rows:
        print('%-20s  %s' % (name, value))


if __name__ == '__main__':
    tf1.disable_v2_behavior()
    tf1.logging.set_verbosity(tf1.logging.INFO)
    tf1.get_logger().propagate = False  # or absl prints each of its lines a second time
    app.run(main)
