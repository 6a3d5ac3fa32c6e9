"""Random trainings with random fetches: a bad step writes nothing, a good one as without a guard.

Or the guard has said so by name before the step.
"""

import pathlib
import re

import pytest
import tensorflow as tf

import slimguard
from tests.helpers import random_graphs
from tests.helpers.models import LogLines

tf1 = tf.compat.v1
FEW, MANY = range(5), range(5, 60)


def seeds(few, many):
    marked = [pytest.param(seed, marks=pytest.mark.full) for seed in many]
    return pytest.mark.parametrize('seed', [*few, *marked])


@pytest.fixture
def control_flow_of_seed(seed):
    """Functions for branches in each fourth seed, else ops of the graph."""
    was_v2 = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if seed % 4 == 3 else tf1.disable_control_flow_v2)()
    yield
    (tf1.enable_control_flow_v2 if was_v2 else tf1.disable_control_flow_v2)()


def incidents_in(logdir):
    """How many there are so far."""
    record = pathlib.Path(logdir, 'slimguard', 'incidents.jsonl')
    return len(record.read_text().splitlines()) if record.exists() else 0


class Steps:
    """Runs the steps of a seed, and keeps what they left.

    Args:
      seed: the seed.
      training: its training.
      elements: by name, what to fetch, a guarded train op in the place of the train op.
      lines: what is logged.
      logdir: where incidents are recorded.

    Attributes:
      runs: for each set of fetches the names, the steps, and the lines that tell of what is
        refused, which end it.
    """

    def __init__(self, seed, training, elements, lines, logdir):
        self._draws = random_graphs.draws(seed, training)
        self._x = training.x
        self._elements = elements
        self._lines = lines
        self._logdir = logdir
        self._read = random_graphs.Reader()
        self.runs = []

    def run(self, session, inner):
        count = 0
        for names, batches in self._draws:
            steps, refused = [], []
            self.runs.append((names, steps, refused))
            for batch in batches:
                before = self._read(inner)
                fetches = {name: self._elements[name] for name in names}
                fetched = session.run(fetches, {self._x: batch})
                refused += [line for line in self._lines if 'NOT guarded' in line]
                if refused:
                    return
                told, count = count, incidents_in(self._logdir)
                after = self._read(inner)
                steps.append(random_graphs.Step(batch, before, fetched, after, count > told))


def in_an_unedited_script(seed, logdir):
    with tf.Graph().as_default(), LogLines() as lines:
        with slimguard.instrument('skip', logdir=logdir, capture=False):
            training = random_graphs.build(seed)
            elements = {**training.train_ops, **training.others}
            steps = Steps(seed, training, elements, lines, logdir)
            with random_graphs.new_session() as session:
                session.run(tf1.global_variables_initializer())
                steps.run(session, session)
    return steps.runs


def under_a_hook(seed, logdir):
    with tf.Graph().as_default(), LogLines() as lines:
        training = random_graphs.build(seed)
        guarded = {
            name: slimguard.guard(train_op, loss=training.losses[name])
            for name, train_op in training.train_ops.items()
        }
        elements = {**training.others, **guarded}
        steps = Steps(seed, training, elements, lines, logdir)
        hooks = [
            slimguard.NanLossHook(loss, on_nan='skip', logdir=logdir, capture=False)
            for loss in training.losses.values()
        ]
        with tf1.train.SingularMonitoredSession(hooks=hooks) as session:
            steps.run(session, session.raw_session())
    return steps.runs


@pytest.mark.every_cell
@pytest.mark.usefixtures('control_flow_of_seed')
@seeds(FEW, MANY)
def test_whatever_an_unedited_script_fetches_goes_through_the_gate(seed, tmp_path):
    for names, steps, refused in in_an_unedited_script(seed, str(tmp_path)):
        assert not refused
        assert not random_graphs.deviations(seed, names, steps)


@pytest.mark.every_cell
@pytest.mark.usefixtures('control_flow_of_seed')
@seeds(FEW, MANY)
def test_under_a_hook_it_does_so_too_or_is_refused_by_name(seed, tmp_path):
    for names, steps, refused in under_a_hook(seed, str(tmp_path)):
        if refused:
            assert all(re.search(r"the update of '(v\d|beta|steps)", line) for line in refused)
            break  # what was written past the gate is in the steps that follow
        assert not random_graphs.deviations(seed, names, steps)
