"""A small detector in the style of an old SSD trainer, which knows nothing of slimguard.

Its learning rate is at least ten times too large. It takes the logarithm of a box's height, which
is 0 in one box of ten. Arguments: the optimizer, the seed, the number of steps, the logdir. It
prints the mean loss on clean images at first and at last, the step, and how many variables are not
finite.
"""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

NAME, SEED, STEPS, LOGDIR = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
RATE = {'RMSProp': 0.02, 'Momentum': 0.02, 'Adam': 0.2}[NAME]
IMAGES, SIZE = 2, 12

tf.disable_v2_behavior()
random = np.random.RandomState(SEED)
tf.set_random_seed(SEED)


def draw(damaged):
    """Images with a bright box in each, and where it is: y, x, height, width."""
    images = random.uniform(0, 0.2, [IMAGES, SIZE, SIZE, 1])
    boxes = np.zeros([IMAGES, 4])
    for image, box in zip(images, boxes):
        height, width = random.randint(2, 7, 2)
        y, x = random.randint(0, SIZE - height), random.randint(0, SIZE - width)
        image[y : y + height, x : x + width] += 1
        box[:] = y, x, height, width
    if damaged:
        boxes[random.uniform(size=IMAGES) < 0.1, 2] = 0
    return images, boxes / SIZE


images = tf.placeholder(tf.float32, [None, SIZE, SIZE, 1])
boxes = tf.placeholder(tf.float32, [None, 4])


def layer(x, shape, name):
    deviation = np.sqrt(2.0 / np.prod(shape[:-1]))
    initializer = tf.truncated_normal_initializer(stddev=deviation)
    weights = tf.get_variable(name, shape, initializer=initializer)
    bias = tf.get_variable(name + '_bias', shape[-1:], initializer=tf.zeros_initializer())
    if len(shape) == 4:
        return tf.nn.leaky_relu(tf.nn.conv2d(x, weights, [1, 2, 2, 1], 'SAME') + bias)
    return tf.matmul(x, weights) + bias


net = layer(images, [3, 3, 1, 16], 'conv1')
net = layer(net, [3, 3, 16, 32], 'conv2')
net = layer(net, [3, 3, 32, 32], 'conv3')
net = tf.nn.leaky_relu(layer(tf.reshape(net, [-1, 2 * 2 * 32]), [128, 64], 'full'))
predicted = layer(net, [64, 4], 'box')
# Centre and size, the size as a logarithm, in units of their variances: as SSD encodes boxes.
centre = (boxes[:, :2] + boxes[:, 2:] / 2 - 0.5) / 0.1
wanted = tf.concat([centre, tf.log(boxes[:, 2:] / 0.35) / 0.2], 1)
loss = tf.reduce_mean(tf.reduce_sum(tf.square(predicted - wanted), 1))
step = tf.train.get_or_create_global_step()
optimizer = {
    'RMSProp': lambda: tf.train.RMSPropOptimizer(RATE, momentum=0.9, epsilon=1.0),
    'Momentum': lambda: tf.train.MomentumOptimizer(RATE, 0.9),
    'Adam': lambda: tf.train.AdamOptimizer(RATE),
}[NAME]()
train_op = optimizer.minimize(loss, global_step=step)
clean = [draw(damaged=False) for _ in range(8)]


def mean_loss(session):
    found = [session.run(loss, {images: x, boxes: y}) for x, y in clean]
    return float(np.mean(found))


saver = tf.train.Saver()
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    print('first', mean_loss(session), flush=True)
    saver.save(session, os.path.join(LOGDIR, 'model.ckpt'), step)
    try:
        for _ in range(3 * STEPS):
            x, y = draw(damaged=True)
            session.run(train_op, {images: x, boxes: y})
            if session.run(step) >= STEPS:
                break
    finally:
        values = session.run(tf.global_variables())
        bad = sum(not np.isfinite(value).all() for value in values)
        print('last', mean_loss(session), 'step', session.run(step), 'not finite', bad)
