"""Trains on TFRecords with slim.learning.train, as the slim examples of 2016 and 2017 do."""

import os

import numpy as np
import tensorflow as tf

slim = tf.contrib.slim

tf.app.flags.DEFINE_string('log_dir', '/tmp/tfrecords/log', 'Where to write checkpoints.')
tf.app.flags.DEFINE_string('dataset_dir', '/tmp/tfrecords', 'Where the TFRecords are.')
tf.app.flags.DEFINE_integer('batch_size', 8, 'The number of samples in each batch.')
tf.app.flags.DEFINE_integer('max_number_of_steps', 24, 'The number of training steps.')
tf.app.flags.DEFINE_float('learning_rate', 0.01, 'The learning rate.')
tf.app.flags.DEFINE_integer('nan_record', -1, 'The record with a broken image; -1 for none.')

FLAGS = tf.app.flags.FLAGS

NUM_SAMPLES = 64
ITEMS_TO_DESCRIPTIONS = {'image': 'An 8x8 image.', 'label': 'Whether it is bright.'}


def write_records(path):
    random = np.random.RandomState(0)
    with tf.python_io.TFRecordWriter(path) as writer:
        for i in range(NUM_SAMPLES):
            label = i % 2
            image = random.rand(64) * 0.5 + label * 0.5
            if i == FLAGS.nan_record:
                image[5] = np.nan
            features = {
                'image/pixels': tf.train.Feature(float_list=tf.train.FloatList(value=image)),
                'image/label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def get_split(file_pattern):
    keys_to_features = {
        'image/pixels': tf.FixedLenFeature([64], tf.float32),
        'image/label': tf.FixedLenFeature([], tf.int64, default_value=tf.zeros([], tf.int64)),
    }
    items_to_handlers = {
        'image': slim.tfexample_decoder.Tensor('image/pixels', shape=[8, 8, 1]),
        'label': slim.tfexample_decoder.Tensor('image/label', shape=[]),
    }
    return slim.dataset.Dataset(
        data_sources=file_pattern,
        reader=tf.TFRecordReader,
        decoder=slim.tfexample_decoder.TFExampleDecoder(keys_to_features, items_to_handlers),
        num_samples=NUM_SAMPLES,
        items_to_descriptions=ITEMS_TO_DESCRIPTIONS,
        num_classes=2,
    )


def network(images, num_classes, is_training):
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        weights_initializer=tf.truncated_normal_initializer(stddev=0.1),
        weights_regularizer=slim.l2_regularizer(0.0005),
    ):
        net = slim.conv2d(images, 4, [3, 3], normalizer_fn=slim.batch_norm, scope='conv1')
        net = slim.max_pool2d(net, [2, 2], scope='pool1')
        net = slim.flatten(net)
        net = slim.dropout(net, 0.9, is_training=is_training)
        return slim.fully_connected(net, num_classes, activation_fn=None, scope='logits')


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    if not tf.gfile.Exists(FLAGS.dataset_dir):
        tf.gfile.MakeDirs(FLAGS.dataset_dir)
    path = os.path.join(FLAGS.dataset_dir, 'train.tfrecord')
    write_records(path)

    with tf.Graph().as_default():
        tf.set_random_seed(0)
        dataset = get_split(path)
        provider = slim.dataset_data_provider.DatasetDataProvider(
            dataset, num_readers=1, shuffle=False, common_queue_capacity=32, common_queue_min=8
        )
        image, label = provider.get(['image', 'label'])
        images, labels = tf.train.batch(
            [image, label], batch_size=FLAGS.batch_size, num_threads=1, capacity=32
        )
        logits = network(images, dataset.num_classes, is_training=True)
        tf.losses.softmax_cross_entropy(slim.one_hot_encoding(labels, 2), logits)
        total_loss = tf.losses.get_total_loss()

        tf.summary.image('images', images)
        tf.summary.scalar('losses/total_loss', total_loss)
        for variable in slim.get_model_variables():
            tf.summary.histogram(variable.op.name, variable)

        optimizer = tf.train.AdamOptimizer(FLAGS.learning_rate)
        train_op = slim.learning.create_train_op(
            total_loss, optimizer, clip_gradient_norm=4, summarize_gradients=True
        )
        loss = slim.learning.train(
            train_op,
            FLAGS.log_dir,
            number_of_steps=FLAGS.max_number_of_steps,
            log_every_n_steps=5,
            save_summaries_secs=1,
            save_interval_secs=600,
        )
    print('final loss', loss)


if __name__ == '__main__':
    tf.app.run()
