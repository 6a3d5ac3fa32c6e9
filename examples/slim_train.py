"""Trains a small TF-Slim convnet on handwritten digits, under slimguard. Copy `train`.

python examples/slim_train.py                           # a healthy training
python examples/slim_train.py --nan_every=10            # one pixel of every tenth batch is NaN
python examples/slim_train.py --explode_at=300          # from step 300 the learning rate is wrong
python examples/slim_train.py --nan_every=10 --stock    # the same with plain tf-slim
"""

import argparse
import os
import shlex
import sys
import tempfile

import numpy as np
import tensorflow as tf
import tf_slim as slim
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import slimguard  # also lets tf-slim run on new versions of TensorFlow

tf1 = tf.compat.v1

# Skip a bad batch. After three in a row, go back to a good state and continue with a tenth of the
# learning rate. After three such rollbacks, end.
ON_NAN = 'skip:3,rollback:3x0.1,raise'


def train(total_loss, optimizer, logdir, steps, check_numerics=False, on_nan=ON_NAN):
    """Trains under slimguard. Returns the incidents, and the error that ended it, if any."""
    train_op = slimguard.create_train_op(total_loss, optimizer, check_numerics=check_numerics)
    # A guess, with equal probabilities for all ten digits, has a loss of 2.3. A loss of 5 is bad.
    guard = slimguard.NanLossHook(total_loss, on_nan=on_nan, max_loss=5.0)
    # The loss curve, in no collection: else slim computes it in a run of its own, on another batch.
    summary = tf1.summary.scalar('total_loss', total_loss, collections=[])
    hooks = [guard, tf1.train.SummarySaverHook(10, output_dir=logdir, summary_op=summary)]
    try:
        slimguard.train(train_op, logdir, number_of_steps=steps, hooks=hooks, log_every_n_steps=100)
    except slimguard.NanLossError as error:
        return guard.incidents, error
    return guard.incidents, None


def train_stock(total_loss, optimizer, logdir, steps, check_numerics=False):
    """The same with plain tf-slim, which knows of no incidents."""
    train_op = slim.learning.create_train_op(total_loss, optimizer, check_numerics=check_numerics)
    try:
        slim.learning.train(train_op, logdir, number_of_steps=steps, log_every_n_steps=100)
        return [], None
    except tf.errors.InvalidArgumentError as error:  # raised by its check_numerics
        return [], error


def load_data():
    """Returns (images, labels) to train on and (images, labels) held out, pixels in [0, 1]."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16.0
    labels = digits.target.astype(np.int64)
    split = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = split
    return (train_images, train_labels), (test_images, test_labels)


def next_batch(images, labels, seed=1, batch_size=32, nan_every=0):
    """Returns the tensors of the next batch. In every `nan_every`-th one pixel is NaN."""

    def damage(index, batch):
        noise = tf.where(tf.equal(index % nan_every, 0), np.float32('nan'), np.float32(0))
        return batch[0] + tf.scatter_nd([[0, 4, 4, 0]], [noise], tf.shape(batch[0])), batch[1]

    dataset = tf1.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels), seed=seed)
    dataset = dataset.repeat().batch(batch_size, drop_remainder=True)
    if nan_every:
        dataset = dataset.enumerate(start=1).map(damage)
    return tf1.data.make_one_shot_iterator(dataset.prefetch(1)).get_next()


def digits_net(images, is_training):
    """Returns the logits, [batch, 10]."""
    batch_norm = {'is_training': is_training, 'decay': 0.9}
    layers = [slim.conv2d, slim.fully_connected]
    with slim.arg_scope(layers, normalizer_fn=slim.batch_norm, normalizer_params=batch_norm):
        net = slim.conv2d(images, 32, [3, 3], scope='conv1')
        net = slim.max_pool2d(net, [2, 2], scope='pool1')
        net = slim.conv2d(net, 64, [3, 3], scope='conv2')
        net = slim.max_pool2d(net, [2, 2], scope='pool2')
        net = slim.fully_connected(slim.flatten(net), 64, scope='fc3')
    net = slim.dropout(net, 0.5, is_training=is_training, scope='dropout3')
    return slim.fully_connected(net, 10, activation_fn=None, scope='logits')


def learning_rate(explode_at=0):
    """Returns the learning rate; from step `explode_at` on it is 200 times too large."""
    is_wrong = tf1.train.get_or_create_global_step() >= (explode_at or tf.int64.max)
    return tf.where(is_wrong, 4.0, 0.02)


def evaluate(images, labels, checkpoint):
    """Returns the checkpoint's accuracy, and how many of its variables hold a NaN or Inf."""
    with tf.Graph().as_default(), tf1.Session() as session:
        predictions = tf.argmax(digits_net(images, is_training=False), axis=1)
        tf1.train.Saver().restore(session, checkpoint)
        predicted, values = session.run([predictions, tf1.global_variables()])
    return np.mean(predicted == labels), sum(not np.isfinite(value).all() for value in values)


def report(logdir, incidents, error, test_data):
    """Prints how the training went. Returns the exit status: 1 if it failed, else 0."""
    checkpoint = tf1.train.latest_checkpoint(logdir)
    accuracy, non_finite = evaluate(*test_data, checkpoint=checkpoint)
    actions = [incident.action for incident in incidents]
    print('\noutcome               %s' % (type(error).__name__ if error else 'ended'))
    print('checkpoint            %s' % checkpoint)
    print('steps                 %d' % tf1.train.load_variable(checkpoint, 'global_step'))
    print('skipped batches       %d' % actions.count('skip'))
    print('rollbacks             %d' % actions.count('rollback'))
    print('test accuracy         %.3f' % accuracy)
    print('non-finite variables  %d' % non_finite)
    if incidents:
        print('\nwhat was wrong: python -m slimguard report ' + shlex.quote(logdir))
    return int(bool(error or non_finite))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--logdir', help='for checkpoints and summaries; default: a new directory')
    parser.add_argument('--steps', type=int, default=600, help='the global step to train to')
    parser.add_argument('--nan_every', type=int, default=0, help='damage every N-th batch')
    parser.add_argument('--explode_at', type=int, default=0, help='the step to go wrong at')
    parser.add_argument('--on_nan', default=ON_NAN, help='a policy; default: %(default)s')
    parser.add_argument('--check_numerics', action='store_true', help="use TensorFlow's own check")
    parser.add_argument('--stock', action='store_true', help='train with plain tf-slim')
    args = parser.parse_args()
    train_data, test_data = load_data()
    tf1.set_random_seed(1)
    images, labels = next_batch(*train_data, nan_every=args.nan_every)
    tf1.losses.sparse_softmax_cross_entropy(labels, digits_net(images, is_training=True))
    optimizer = tf1.train.MomentumOptimizer(learning_rate(args.explode_at), 0.9)
    logdir = os.path.abspath(args.logdir or tempfile.mkdtemp(prefix='slim_train_'))
    arguments = (tf1.losses.get_total_loss(), optimizer, logdir, args.steps, args.check_numerics)
    incidents, error = train_stock(*arguments) if args.stock else train(*arguments, args.on_nan)
    return report(logdir, incidents, error, test_data)


if __name__ == '__main__':
    tf1.disable_v2_behavior()
    tf1.logging.set_verbosity(tf1.logging.INFO)
    tf1.get_logger().propagate = False  # else absl prints each of its lines a second time
    sys.exit(main())
