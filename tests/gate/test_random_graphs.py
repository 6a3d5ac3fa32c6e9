"""Random trainings with random fetches: a bad step writes nothing, a good one as without a guard.

Or the guard has refused the run, by name and before the step.
"""

import pathlib
import re

import pytest
import tensorflow as tf

import slimguard
from slimguard.gate.written_beside import OutsideTheGateError
from tests.helpers import random_graphs
from tests.helpers.models import LogLines

tf1 = tf.compat.v1
FEW, MANY = range(5), range(5, 9)


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
      runs: for each set of fetches the names, the steps, and what was refused: the lines that tell
        of a variable, or the error, which ends the set.
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
                try:
                    fetched = session.run(fetches, {self._x: batch})
                except OutsideTheGateError as error:
                    refused.append(str(error))
                    assert not random_graphs.differing(before, self._read(inner))
                    break
                refused[:] = [line for line in self._lines if 'NOT guarded' in line]
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


def in_a_monitored_session(hooks):
    return tf1.train.SingularMonitoredSession(hooks=hooks)  # which finalizes the graph


def in_a_watched_session(hooks):
    session = random_graphs.new_session()
    session.run(tf1.global_variables_initializer())
    return slimguard.watch(session, hooks=hooks)


def under_a_hook(seed, logdir, new_session):
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
        with new_session(hooks) as session:
            is_watched = new_session is in_a_watched_session
            steps.run(session, session if is_watched else session.raw_session())
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
@seeds(range(3), range(3, 6))
def test_under_a_hook_it_does_so_too_or_the_run_is_refused(seed, tmp_path):
    worlds = in_a_monitored_session, in_a_watched_session
    found = [under_a_hook(seed, str(tmp_path / each.__name__), each) for each in worlds]
    for names, steps, refused in found[0]:
        told = {re.search("the update of '(.*?)'", line) for line in refused if 'NOT' in line}
        told = {each.group(1) for each in told}
        assert not random_graphs.deviations(seed, names, steps, told, computes_losses=True)
    monitored, watched = [[(names, len(steps), r) for names, steps, r in runs] for runs in found]
    assert monitored == watched
