"""While a training waits for it, the search for a cause takes no longer than the docs say."""

import pytest
import tensorflow as tf

import slimguard
from slimguard import gate
from slimguard.diagnosis import bundle, evidence, replay
from slimguard.diagnosis.capture import Capture
from slimguard.system import memory
from tests.helpers.models import Batches, Linear, records_in, train_quietly

tf1 = tf.compat.v1
CUT = 'the step was not searched for the cause: the training would wait for longer than 1e-09 s'


class Log:
    """A model whose logarithm makes NaN of the finite numbers in the batches given."""

    def __init__(self, bad=()):
        self.batches = Batches(bad, value=-1e30)
        self.step = tf1.train.get_or_create_global_step()
        weights = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
        logs = tf.math.log(self.batches.x + 1e3)
        self.loss = tf.reduce_mean(tf.square(tf.matmul(logs, weights)))
        self.optimizer = tf1.train.GradientDescentOptimizer(1e-4)


def train(model, logdir, on_nan='skip'):
    train_quietly(slimguard.create_train_op(model.loss, model.optimizer), logdir, on_nan=on_nan)


def told(logdir):
    (incident,) = records_in(logdir)
    return incident['diagnosis']


@pytest.fixture
def no_time(monkeypatch):
    monkeypatch.setattr(evidence, 'SECONDS', 1e-9)


@pytest.mark.full
def test_without_time_what_the_step_drew_is_looked_at(tmp_path, no_time):
    train(Linear(bad=[3]), tmp_path)
    lines = told(tmp_path).splitlines()
    assert lines[0] == 'in the input: bad data: 1 NaN among 12 values, in row 1'
    assert 'models.py' in told(tmp_path)
    in_bundle = 'python -m slimguard replay BUNDLE searches all of it, if a bundle was written'
    assert lines[-1] == '  %s; %s' % (CUT, in_bundle)


@pytest.mark.full
def test_a_replay_searches_all_of_what_was_not_searched(tmp_path, no_time, capsys):
    train(Log(bad=[3]), tmp_path)
    said = 'not found: all that the step drew is finite, and nothing was run again'
    assert told(tmp_path).splitlines()[0] == said
    (path,) = bundle.paths(str(tmp_path))
    assert replay.main(path) == 0
    assert 'log of a negative number' in capsys.readouterr().out


@pytest.mark.full
def test_the_last_incident_is_searched_as_long_as_it_takes(tmp_path, no_time):
    with pytest.raises(tf.errors.InvalidArgumentError, match='log of a negative number'):
        train(Log(bad=[3]), tmp_path, on_nan='raise')


def test_without_memory_for_a_copy_of_the_variables_what_the_step_drew_is_looked_at(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(memory, 'available', lambda: 8)
    train(Log(bad=[3]), tmp_path)
    assert told(tmp_path).splitlines()[-1] == (
        '  the step was not searched for the cause: '
        'a copy of its variables takes 0.0 MB, and 0.0 MB of memory are free'
    )


def test_ten_seconds_are_enough_for_a_small_step_and_not_for_large_tensors():
    x = tf1.placeholder(tf.float32, [None, 3])
    w = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
    loss = tf.reduce_mean(tf.matmul(x, w))
    train_op = gate.guard(tf1.train.GradientDescentOptimizer(0.1).minimize(loss))
    capture = Capture(gate.gate_of(train_op))
    assert evidence.is_within(evidence.SECONDS, capture, rows=4)
    assert not evidence.is_within(evidence.SECONDS, capture, rows=10**9)
