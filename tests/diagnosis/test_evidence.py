"""After an incident: the cause is found and written down; errors in that hide no incident."""

import dataclasses
import os
import time

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import gate
from slimguard.diagnosis import bundle, evidence, exported_step, replay
from slimguard.diagnosis.evidence import Depth, Evidence
from slimguard.incidents.incident import Incident
from tests.helpers.models import Batches, Linear, LogLines, records_in

tf1 = tf.compat.v1


class Watch(tf1.train.SessionRunHook):
    """Fetches what `Evidence` needs, and asks it after each bad step."""

    def __init__(self, gate, evidence, depth=Depth.DRAWN):
        self._gate, self._evidence, self._depth = gate, evidence, depth
        self.found = []

    def before_run(self, run_context):
        fetches = [self._gate.written, self._gate.bad, self._evidence.capture.row]
        return tf1.train.SessionRunArgs(fetches, {self._gate.watched: True})

    def after_run(self, run_context, run_values):
        written, bad, _ = run_values.results
        if not written:
            labels = [label for label, is_bad in zip(self._gate.labels, bad) if is_bad]
            finding = gate.explain(labels)
            told = finding.reason, finding.tensors
            incident = Incident(len(self.found), None, *told, 'hook', time.time())
            session = run_context.session
            examined = self._evidence.examine(session, incident, labels, self._depth)
            diagnosis = None if examined.diagnosis is None else str(examined.diagnosis)
            incident = dataclasses.replace(incident, diagnosis=diagnosis)
            kept = self._evidence.keep(examined, incident, self._depth)
            self.found.append(kept)


def train(logdir, bad, steps=4, depth=Depth.DRAWN, **kwargs):
    model = Linear(bad=bad)
    train_op = gate.guard(model.minimize(), model.loss)
    found = gate.gate_of(train_op)
    hook = Watch(found, Evidence(found, logdir, **kwargs), depth)
    with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session:
        for _ in range(steps):
            session.run(train_op)
    assert model.batches.drawn == steps
    return hook.found


@pytest.mark.full
def test_a_bad_step_is_diagnosed_and_its_bundle_replays(tmp_path, capsys):
    (found,) = train(str(tmp_path), bad=[2])
    assert found.diagnosis.non_finite.rows == [1]
    assert found.bundle == str(tmp_path / 'slimguard' / 'step-0')
    told = str(found.diagnosis).splitlines()[0]
    assert told == 'in the input: bad data: 1 NaN among 12 values, in row 1'
    assert replay.main(found.bundle) == 0


@pytest.mark.full
def test_the_graph_is_exported_once_for_the_diagnosis_and_the_bundle(tmp_path, monkeypatch):
    exported = []
    step_of = exported_step._Export.step
    count_one = lambda made: exported.append(1) or step_of(made)  # noqa: E731
    monkeypatch.setattr(exported_step._Export, 'step', count_one)
    batches = Batches(bad=[1])
    step = tf1.train.get_or_create_global_step()
    count = tf1.get_variable('count', initializer=0.0, trainable=False)
    with tf.control_dependencies([count.assign_add(1.0)]):
        x = tf.identity(batches.x)
    loss = tf.reduce_mean(tf.square(tf.matmul(x, tf1.get_variable('w', [3, 1]))))
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    train_op = gate.guard(optimizer.minimize(loss, global_step=step), loss)
    found = gate.gate_of(train_op)
    hook = Watch(found, Evidence(found, str(tmp_path)))
    with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session:
        for _ in range(3):
            session.run(train_op)
    assert [f.diagnosis.non_finite.rows for f in hook.found] == [[1]]
    assert len(exported) == 1
    assert replay.main(hook.found[0].bundle) == 0


def test_without_a_logdir_there_is_a_diagnosis_and_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = train(None, bad=[1])
    assert found.bundle is None
    assert 'in row 1' in str(found.diagnosis)
    assert os.listdir(str(tmp_path)) == []


def test_searches_and_bundles_take_ten_seconds_and_a_tenth_of_the_time(tmp_path, monkeypatch):
    x = tf1.placeholder(tf.float32, [4, 3])
    weights = tf1.get_variable('w', initializer=[[1.0], [1.0], [1.0]])
    loss = tf.reduce_mean(tf.matmul(tf.math.log(x), weights))
    found = gate.gate_of(gate.guard(tf1.train.GradientDescentOptimizer(0.1).minimize(loss), loss))
    now = [0.0]  # a search takes four seconds, and a bundle two
    asked = Evidence(found, str(tmp_path), max_bundles=2, clock=lambda: now[0])
    hook = Watch(found, asked)

    def taking(seconds, function):
        def called(*args):
            now[0] += seconds
            return function(*args)

        return called

    monkeypatch.setattr(evidence, 'diagnose', taking(4.0, evidence.diagnose))
    monkeypatch.setattr(bundle, 'write', taking(2.0, bundle.write))
    with_nan, finite = np.full([4, 3], np.nan), np.full([4, 3], -1.0)
    with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session, LogLines() as lines:
        for seconds, batch in [(0, finite)] * 3 + [(0, with_nan), (25.9, finite), (0.2, finite)]:
            now[0] += seconds
            session.run(found.train_op, {x: batch})
    # After two incidents 12 s are spent, and the bundle of the NaN makes them 14 s. So much is
    # allowed at 40 s.
    is_searched = [each.depth is Depth.FULL for each in hook.found]
    assert is_searched == [True, True, False, False, False, True]
    assert now == [14.0 + 25.9 + 0.2 + 4.0]
    why_not = '; cause not looked for: ' + evidence._NO_TIME
    assert [each.why_not for each in hook.found] == ['', '', why_not, '', why_not, '']
    told = str(hook.found[3].diagnosis)
    assert told.startswith('in the input: bad data: 12 NaN')
    assert told.endswith('not searched for the cause: ' + evidence._NO_TIME)
    (said,) = [line for line in lines if 'causes has taken' in line]
    assert 'taken 12 s, ' in said and 'in the next 8 s ' in said


@pytest.mark.full
def test_once_there_are_all_bundles_only_a_new_kind_gets_one(tmp_path):
    x, y = (tf1.placeholder(tf.float32, [4, 1], name) for name in 'xy')
    weights = tf1.get_variable('w', initializer=[[1.0]])
    loss = tf.reduce_mean(tf.matmul(tf.math.log(x), weights) + tf.matmul(tf.math.sqrt(y), weights))
    found = gate.gate_of(gate.guard(tf1.train.GradientDescentOptimizer(0.1).minimize(loss), loss))
    good, bad = np.ones([4, 1]), -np.ones([4, 1])
    log, root, data = {x: bad, y: good}, {x: good, y: bad}, {x: good, y: good * np.nan}

    def train(*feeds):
        hook = Watch(found, Evidence(found, str(tmp_path), max_bundles=2))
        with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for feed in feeds:
                session.run(found.train_op, feed)
        assert all(each.depth is Depth.FULL for each in hook.found)
        return [each.bundle for each in hook.found]

    first, second, none, of_root, *repeats = train(log, log, log, root, log, root)
    assert second and [none, *repeats] == [None] * 3
    assert bundle.paths(str(tmp_path)) == [first, of_root]  # the repeat has gone
    assert train(log, root) == [None, None]  # as a restart
    (of_data,) = train(data)
    assert bundle.paths(str(tmp_path)) == [of_root, of_data]  # the oldest has gone


def test_the_last_incident_is_always_written(tmp_path):
    found = train(str(tmp_path), bad=[0, 1, 2], max_bundles=2, depth=Depth.FULL)
    assert all(f.bundle is not None for f in found)
    assert bundle.paths(str(tmp_path)) == [found[0].bundle, found[2].bundle]


READING = [np.nan, 0.5, -1.0]


@pytest.mark.parametrize(
    'is_again, rows',
    [
        (True, [READING, READING, [0.5, np.nan, 3.0], READING]),
        # Other samples; rows that other samples may share; the same row of another placeholder.
        (False, [READING, [np.nan, 0.5, 1.0], [np.nan, -0.5, -1.0]]),
        (False, [[np.nan, 0.5, 0.5], [np.nan, 0.5, 0.5], [np.nan, np.inf, 0.0]]),
        (False, [READING, {'y': READING}]),
    ],
    ids=['again', 'others', 'alike', 'elsewhere'],
)
def test_a_bad_row_that_comes_again_is_known_by_its_bytes(is_again, rows, tmp_path):
    placeholders = {name: tf1.placeholder(tf.float32, [None, 3], name) for name in 'xy'}
    weights = tf1.get_variable('w', initializer=[[1.0], [1.0], [1.0]])
    x, y = placeholders.values()
    loss = tf.reduce_mean(tf.matmul(x + y, weights) ** 2)
    train_op = slimguard.guard(tf1.train.AdamOptimizer(0.1).minimize(loss), loss=loss)
    chain = slimguard.Skip(max_consecutive=2), 'raise'
    hook = slimguard.NanLossHook(loss, on_nan=chain, logdir=str(tmp_path), max_bundles=1)
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    with LogLines() as lines, slimguard.watch(session, hooks=[hook]) as watched:
        for number, row in enumerate(rows):
            name = 'y' if isinstance(row, dict) else 'x'
            fed = {each: np.ones([4, 3], np.float32) for each in placeholders.values()}
            watched.run(train_op, fed)
            fed[placeholders[name]][number] = row[name] if name == 'y' else row
            watched.run(train_op, fed)
    reasons = [record['reason'] for record in records_in(tmp_path)]
    said = [reason.partition('; row ')[2] for reason in reasons]
    told = 'of x:0 is, byte for byte, a bad row of incident 1 (%d times so far): where a data set'
    if not is_again:
        assert not any(said) and len(said) == len(rows)
    else:
        assert said[0] == said[2] == ''
        assert said[1].startswith('1 ' + told % 2) and said[3].startswith('3 ' + told % 3)
        assert 'row 3 ' + told % 3 in lines[-1]  # which counts the batches that were skipped


def test_what_goes_wrong_here_is_logged_once_and_counted_and_does_not_hide_the_incident(tmp_path):
    (tmp_path / 'slimguard').write_text('in the way')
    model = Linear(bad=range(4))
    found = gate.gate_of(gate.guard(model.minimize(), model.loss))
    asked = Evidence(found, str(tmp_path))
    hook = Watch(found, asked)
    with LogLines('slimguard') as lines:
        with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for _ in range(4):
                session.run(found.train_op)
        asked.close()
    assert all(each.bundle is None and each.diagnosis.is_known for each in hook.found)
    first, last = lines
    assert first.startswith('the bundle could not be written: ')
    assert last == 'the bundle could not be written: 3 more not shown'


@pytest.mark.full
def test_a_place_that_cannot_be_listed_still_gives_a_diagnosis(tmp_path, monkeypatch):
    def fail(_):
        raise OSError('no such device')

    monkeypatch.setattr(bundle, 'paths', fail)
    with LogLines('slimguard') as lines:
        (found,) = train(str(tmp_path), bad=[1])
    assert found.diagnosis.is_known
    assert lines == ['the bundle could not be written: OSError: no such device']
