"""What the check of a checkpoint costs: FiniteSaver beside the stock Saver.

Both save a model of 100 MB in 25 variables, in turns, in one process; then each saves it in a
process of its own, for the peak of the memory. From the root of the repository::

    python benchmarks/save_cost.py

What limits it: the check reads the files back, with a checksum of every byte, one variable at a
time.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import measure
import tensorflow as tf

import slimguard

tf1 = tf.compat.v1

VARIABLES, SIZE = 25, 1000000  # of 4 bytes


def build(use_resource, session):
    for number in range(VARIABLES):
        tf1.get_variable('w%d' % number, [SIZE], use_resource=use_resource)
    savers = {'Saver': tf1.train.Saver(max_to_keep=2)}
    savers['FiniteSaver'] = slimguard.FiniteSaver(tf1.train.Saver(max_to_keep=2))
    session.run(tf1.global_variables_initializer())
    return savers


def saving(session, saver, folder, name):
    steps = iter(range(10**6))
    prefix = os.path.join(folder, name)
    return lambda: saver.save(session, prefix, next(steps), write_meta_graph=False)


def measure_time(use_resource, rounds):
    with tf.Graph().as_default(), tf1.Session() as session, tempfile.TemporaryDirectory() as folder:
        savers = build(use_resource, session)
        calls = {}
        for name, saver in savers.items():
            # Each saver has a folder of its own, so that neither reads the other's state file.
            os.mkdir(os.path.join(folder, name))
            calls[name] = saving(session, saver, os.path.join(folder, name), 'm')
        return measure.interleave(calls, rounds)


def peak_memory(use_resource, name):
    """The peak memory, in MB, of a process that saves with one of the savers."""
    child = [sys.executable, __file__, '--only', name] + ['--resource'] * use_resource
    return int(subprocess.run(child, stdout=subprocess.PIPE, check=True).stdout) / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--rounds', type=int, default=20)
    parser.add_argument('--only', help=argparse.SUPPRESS)
    parser.add_argument('--resource', action='store_true', help=argparse.SUPPRESS)
    options = parser.parse_args()
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    if options.only:
        with tf1.Session() as session, tempfile.TemporaryDirectory() as folder:
            save = saving(session, build(options.resource, session)[options.only], folder, 'm')
            for _ in range(5):
                save()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    rows = [('100 MB of', 'time of a save', 'a save by Saver', 'peak memory')]
    for use_resource in (False, True):
        found = measure_time(use_resource, options.rounds)
        memory = [peak_memory(use_resource, name) for name in ('Saver', 'FiniteSaver')]
        rows.append(
            (
                'resource variables' if use_resource else 'ref variables',
                found['FiniteSaver'],
                '%.0f ms' % (1e3 * found['Saver'].seconds),
                '%.3f (%.0f MB, Saver %.0f MB)' % (memory[1] / memory[0], memory[1], memory[0]),
            )
        )
    print('TensorFlow %s, FiniteSaver over Saver: median (quartiles)\n' % tf.__version__)
    print(measure.table(rows))


if __name__ == '__main__':
    main()
