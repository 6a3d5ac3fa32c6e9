"""Processes that `multiprocessing` spawns are guarded like the script that `run` runs."""

import builtins
import multiprocessing.spawn
import re

import pytest

from slimguard.incidents import record_file
from slimguard.unedited import run
from slimguard.unedited.patches import Patches
from tests.helpers.children import python

SCRIPT = """
import multiprocessing
import sys


def train():
    import tensorflow as tf

    x = tf.placeholder(tf.float32, [])  # a name of TensorFlow 1
    w = tf.get_variable('w', initializer=1.0)
    train_op = tf.train.GradientDescentOptimizer(0.25).minimize(w * x)
    with tf.Session() as session:
        session.run(w.initializer)
        for value in (1.0, float('nan'), 1.0):
            session.run(train_op, {x: value})
        assert session.run(w) == 0.5


def draw():
    assert 'tensorflow' not in sys.modules and 'numpy' not in sys.modules


if __name__ == '__main__':
    for method, target in (('spawn', train), (sys.argv[1], draw)):
        process = multiprocessing.get_context(method).Process(target=target)
        process.start()
        process.join()
        assert process.exitcode == 0, (method, target)
"""


@pytest.mark.full
def test_a_spawned_child_that_trains_is_guarded_and_another_imports_nothing(tmp_path):
    script = tmp_path / 'train.py'
    script.write_text(SCRIPT)
    other = 'forkserver' if 'forkserver' in multiprocessing.get_all_start_methods() else 'spawn'
    options = ['--tf1', '--on_nan=skip', '--logdir=records']
    done = python(
        *('-W', 'ignore', '-m', 'slimguard', 'run', *options, script, other), cwd=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith('slimguard: ')]
    in_child = (
        r'slimguard: in process \d+, a child: guarded GradientDescent: 3 steps, 1 incident '
        r'in this run \(skip 1\)'
    )
    assert re.fullmatch(in_child, said[0])
    assert said[1].endswith('python -m slimguard report %s' % (tmp_path / 'records'))
    assert said[2] == (
        'slimguard: nothing was guarded in this process, which ran no session; it started 2 '
        'others, and each that was guarded has a last line of its own'
    )
    assert len(said) == 3
    incidents = record_file.read_incidents(tmp_path / 'records')
    assert [incident.action for incident in incidents] == ['skip']
    assert all('1 NaN' in incident.diagnosis for incident in incidents)


def test_each_child_is_guarded_and_a_fork_server_is_none():
    before = multiprocessing.spawn.get_preparation_data
    patches = Patches()
    run.hand_on(patches, len)
    assert 'slimguard' in multiprocessing.spawn.get_preparation_data('Process-1')
    assert 'slimguard' not in multiprocessing.spawn.get_preparation_data('ignore')
    patches.undo()
    assert multiprocessing.spawn.get_preparation_data is before


def test_a_process_is_guarded_once_before_tensorflow_comes(monkeypatch):
    guarded = []

    def guard():
        __import__('tensorflow')
        guarded.append(builtins.__import__)

    statement = builtins.__import__
    monkeypatch.setattr(builtins, '__import__', statement)
    run.before_tensorflow(guard)
    __import__('json.decoder')
    assert not guarded
    for _ in range(2):
        __import__('tensorflow.compat.v1')
    assert guarded == [statement]
    assert builtins.__import__ is statement
