"""What guarding costs two ranks of Horovod, and how much of it their agreement, as ratios.

    horovodrun --gloo -np 2 -H localhost:2 python benchmarks/ranks_cost.py [rounds] [--quick]

Each rank trains ResNet-50 (8 images of 64 pixels) and a model of two layers three times over, each
training in a session of its own: unguarded, guarded while each rank decides for itself, and
guarded. They take turns: in each round the ranks do some steps of each together. `wall` is the
median ratio of the time a step takes, with its quartiles; `cpu` that of the time that all cores
spend on it in one rank, which other load on the machine moves less. Rank 0 prints both. `--quick`
leaves ResNet-50 out.
"""

import functools
import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import horovod.tensorflow as hvd
import measure
import tensorflow as tf
from tf_slim import nets

from slimguard import compat, gate
from slimguard.gate.building import builder

slim = compat.import_slim()
tf1 = tf.compat.v1

KINDS = {'unguarded': 0, 'guarded, no agreement': 1, 'guarded': 2}


def resnet_50(batch=8, size=64):
    images = tf1.random_uniform([batch, size, size, 3], seed=1)
    with slim.arg_scope(nets.resnet_v1.resnet_arg_scope(1e-4)):
        return nets.resnet_v1.resnet_v1_50(images, 10, is_training=True)[0]


def two_layers():
    net = slim.fully_connected(tf1.random_uniform([32, 64], seed=1), 64)
    return slim.fully_connected(net, 10, activation_fn=None)


def stepper(build, kind):
    """Returns a function that runs a step of a training."""
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        tf1.losses.add_loss(tf.reduce_mean(tf.square(build())))
        loss = tf1.losses.get_total_loss()
        optimizer = hvd.DistributedOptimizer(tf1.train.MomentumOptimizer(1e-4, 0.9))
        train_op = slim.learning.create_train_op(loss, optimizer)
        fetches = [train_op, tf1.train.get_global_step()]
        if kind:
            find, nobody = builder.ranks_of, lambda step: gate.Ranks()
            builder.ranks_of = find if kind == 2 else nobody
            gated = gate.gate_of(gate.guard(train_op, loss=loss))
            builder.ranks_of = find
            assert gated.ranks.are_several == (kind == 2)
            fetches = [gated.train_op, gated.bad, gated.step]
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
    return functools.partial(session.run, fetches)


def main():
    measure.require_arguments(__doc__, '--quick', takes_rounds=True)
    rounds = next((int(each) for each in sys.argv[1:] if each.isdigit()), 20)
    models = {two_layers: 20} if '--quick' in sys.argv else {resnet_50: 1, two_layers: 20}
    hvd.init()
    for build, steps in models.items():
        rows = [[build.__name__, 'wall', 'cpu', 'one step']]
        steppers = {name: stepper(build, kind) for name, kind in KINDS.items()}
        for name, told in measure.interleave(steppers, rounds, steps).items():
            rows.append([name, told, '%.3f' % told.cpu, '%.4f s' % told.seconds])
        if hvd.rank() == 0:
            print(measure.table(rows), flush=True)


if __name__ == '__main__':
    main()
