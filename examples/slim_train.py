"""Trains a small TF-Slim convnet on handwritten digits, under slimguard.

The input can damage itself: with --nan_every=N one pixel of every N-th batch is
NaN, as a broken file or a division by zero would leave it. Guarded, the bad
batches change nothing; with --stock the same run goes through plain tf-slim:

  python examples/slim_train.py --nan_every=10 --on_nan=skip
  python examples/slim_train.py --nan_every=10 --stock

At the end the newest checkpoint is evaluated on digits the training never saw.
"""

import tempfile

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


def next_batch(images, labels):
    """Returns the tensors of the next training batch."""

    def damage(index, batch):
        images, labels = batch
        is_bad = tf.equal(index % FLAGS.nan_every, 0)
        noise = tf.where(is_bad, np.float32('nan'), np.float32(0))
        images += tf.scatter_nd([[0, 4, 4, 0]], [noise], tf.shape(images))
        return images, labels

    dataset = tf1.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(len(labels), seed=FLAGS.seed).repeat()
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


def train_guarded(total_loss, optimizer, logdir):
    """Trains under slimguard. Returns the outcome in words, and the incidents."""
    hook = slimguard.NanLossHook(total_loss, on_nan=FLAGS.on_nan, max_loss=FLAGS.max_loss)
    train_op = slimguard.create_train_op(total_loss, optimizer, check_numerics=FLAGS.check_numerics)
    try:
        loss = slimguard.train(
            train_op, logdir, number_of_steps=FLAGS.steps, log_every_n_steps=100, hooks=[hook]
        )
        outcome = 'ended, last loss %.4f' % loss
    except slimguard.NanLossError as error:
        outcome = 'NanLossError: %s' % error.incident.reason
    return outcome, hook.incidents


def train_stock(total_loss, optimizer, logdir):
    """Trains with plain tf-slim. Returns the outcome in words."""
    train_op = slim.learning.create_train_op(
        total_loss, optimizer, check_numerics=FLAGS.check_numerics
    )
    try:
        loss = slim.learning.train(
            train_op, logdir, number_of_steps=FLAGS.steps, log_every_n_steps=100
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
    logdir = FLAGS.logdir or tempfile.mkdtemp(prefix='slim_train_')
    train_data, test_data = load_data()

    with tf.Graph().as_default():
        tf1.set_random_seed(FLAGS.seed)
        images, labels = next_batch(*train_data)
        logits = digits_net(images, is_training=True)
        tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        total_loss = tf1.losses.get_total_loss()
        optimizer = tf1.train.MomentumOptimizer(FLAGS.learning_rate, 0.9)
        if FLAGS.stock:
            outcome = train_stock(total_loss, optimizer, logdir)
            seen = skipped = 'not watched'
        else:
            outcome, incidents = train_guarded(total_loss, optimizer, logdir)
            seen = len(incidents)
            skipped = sum(incident.action == 'skip' for incident in incidents)

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
