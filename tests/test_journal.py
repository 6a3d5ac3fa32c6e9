"""The record of incidents: the file, the log lines, TensorBoard."""

import glob
import json
import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import journal
from slimguard.__main__ import main
from slimguard.incident import Incident
from tests.models import Linear, LogLines, train_quietly

tf1 = tf.compat.v1


def incident(step=4, action='skip', loss=float('nan'), reason='not finite: loss'):
    return Incident(step, loss, reason, ('loss',), 'hook', 1000000.0 + step, action=action)


def strictly(line):
    """JSON without the NaN that other readers than Python's refuse."""
    return json.loads(line, parse_constant=lambda name: pytest.fail('%s in %s' % (name, line)))


def write(logdir, steps):
    file = journal.IncidentFile(str(logdir))
    for step in steps:
        file.append(incident(step, reason='x' * 300))
    file.close()


class TestFile:
    def test_each_incident_is_a_line_of_json(self, tmp_path):
        file = journal.IncidentFile(str(tmp_path))
        for loss in (float('nan'), float('-inf'), 0.5, None):
            file.append(incident(loss=loss))
        lines = (tmp_path / 'slimguard' / 'incidents.jsonl').read_text().splitlines()
        assert [strictly(line)['loss'] for line in lines] == ['nan', '-inf', 0.5, None]
        records, torn = journal.read(str(tmp_path))
        assert records == [strictly(line) for line in lines] and not torn
        assert records[0]['process'].endswith(':%d' % os.getpid())
        assert records[0]['tensors'] == ['loss']

    @pytest.mark.parametrize('kept', [1, 40, -1])
    def test_a_torn_last_line_is_left_out_and_the_next_writer_goes_on(self, tmp_path, kept):
        write(tmp_path, [1, 2])
        path = tmp_path / 'slimguard' / 'incidents.jsonl'
        first, second, _ = path.read_bytes().split(b'\n')
        path.write_bytes(first + b'\n' + second[:kept])
        write(tmp_path, [3])
        records, torn = journal.read(str(tmp_path))
        assert [record['step'] for record in records] == [1, 3]
        assert torn == 1

    def test_workers_share_it(self, tmp_path):
        # Threads, each with a file of its own: the operating system sees no difference.
        workers = [
            threading.Thread(target=write, args=(tmp_path, range(n, n + 300))) for n in (0, 1000)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        records, torn = journal.read(str(tmp_path))
        assert not torn
        steps = [record['step'] for record in records]
        assert sorted(steps) == list(range(300)) + list(range(1000, 1300))

    def test_what_cannot_be_written_does_not_end_the_training(self, tmp_path):
        (tmp_path / 'slimguard').write_text('a file where the directory should be')
        with LogLines() as lines:
            journal.IncidentFile(str(tmp_path)).append(incident())
        assert 'incidents.jsonl cannot be written' in lines[0]

    def test_it_is_printed_as_a_table(self, tmp_path, capsys):
        write(tmp_path, [4, 11])
        with open(journal.path_in(str(tmp_path)), 'a') as file:
            file.write('{"step": 12, "los')
        main(['incidents', str(tmp_path)])
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ['time', 'step', 'loss', 'action', 'reason']
        assert [line.split()[2:5] for line in lines[1:3]] == [
            [s, 'nan', 'skip'] for s in ('4', '11')
        ]
        assert lines[3] == '1 lines could not be read; a kill can tear one'

    def test_there_may_be_none(self, tmp_path, capsys):
        main(['incidents', str(tmp_path)])
        assert 'there is no record of incidents' in capsys.readouterr().out

    @pytest.mark.parametrize('time', [1e300, -1e300, None])
    def test_a_time_that_is_none_does_not_end_the_table(self, time):
        assert journal.table([{'time': time, 'step': 3}])[1][:2] == ('', '3')


class TestLog:
    def test_many_lines_are_held_back_and_counted(self):
        now = [0.0]
        record = journal.Journal(clock=lambda: now[0])
        with LogLines() as lines:
            for number in range(10000):
                now[0] = number * 0.01
                record.record(incident())
            record.close()
        assert lines[9].startswith('slimguard: incident 10 ')
        assert '(999 more since the last of these lines)' in lines[11]
        assert len(lines) == 10 + 9 + 1
        assert lines[-1].startswith('slimguard: 10000 incidents in all; the last ')
        told = [int(line.rpartition('(')[2].split()[0]) for line in lines[10:-1]]
        last = int(lines[-1].split('the last ')[1].split()[0])
        assert 10 + len(told) + sum(told) + last == 10000

    def test_what_ends_or_turns_a_training_is_always_told(self):
        record = journal.Journal(clock=lambda: 0.0)
        for _ in range(100):
            record.record(incident())
        with LogLines() as lines:
            record.record(incident(action='rollback'))
            record.record(incident(action='raise'))
        assert 'rolling back. (90 more since' in lines[0]
        assert 'raising NanLossError' in lines[1]


@pytest.mark.parametrize('count', [1500, pytest.param(10000, marks=pytest.mark.slow)])
def test_many_incidents_leave_memory_flat_and_all_are_recorded(tmp_path, count):
    model = Linear(bad=lambda draw: draw > 0)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(model.loss, on_nan=slimguard.Skip(20000), logdir=str(tmp_path))
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session, LogLines() as lines:
        for _ in range(count + 1):
            session.run(train_op)
    assert hook.incident_count == count
    assert len(hook.incidents) == 1000
    records, torn = journal.read(str(tmp_path))
    assert len(records) == count and not torn
    assert len(lines) < 100


def test_the_count_and_the_reason_go_to_the_runs_summaries(tmp_path):
    model = Linear(bad=(2, 4))
    tf1.summary.scalar('loss', model.loss)
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    train_quietly(train_op, tmp_path, number_of_steps=4, on_nan='skip')
    (path,) = glob.glob(str(tmp_path / 'events.out*'))  # one file: the run's own writer
    values = [
        (event.step, value)
        for event in tf1.train.summary_iterator(path)
        for value in event.summary.value
    ]
    counts = [(s, v.simple_value) for s, v in values if v.tag == 'slimguard/incidents']
    assert counts == [(2, 1.0), (3, 2.0)]
    reasons = [v for _, v in values if v.tag == 'slimguard/reason']
    assert reasons[0].metadata.plugin_data.plugin_name == 'text'
    text = tf.make_ndarray(reasons[0].tensor).item().decode()
    assert text.startswith('not finite: loss') and text.endswith('(skip)')
    records, _ = journal.read(str(tmp_path))
    assert [record['step'] for record in records] == [2, 3]
    assert np.isfinite([v.simple_value for _, v in values]).all()
