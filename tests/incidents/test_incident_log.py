"""The record of incidents: the file, the log lines, TensorBoard."""

import contextlib
import dataclasses
import glob
import json
import os
import resource
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.incidents import incident_log, record_file
from slimguard.incidents.incident import Incident
from tests.helpers.models import Linear, LogLines, records_in, train_quietly

tf1 = tf.compat.v1


def incident(step=4, action='skip', loss=float('nan'), reason='not finite: loss'):
    return Incident(step, loss, reason, ('loss',), 'hook', 1000000.0 + step, action=action)


def examined(trouble):
    return dataclasses.replace(incident(), diagnosis='in the forward pass: ' + trouble)


def strictly(line):
    """Reads a line of JSON; NaN and Infinity, which only Python's reader accepts, are errors."""
    return json.loads(line, parse_constant=lambda name: pytest.fail('%s in %s' % (name, line)))


def write(logdir, steps):
    file = record_file.IncidentFile(str(logdir))
    for step in steps:
        file.append(incident(step, reason='x' * 300))
    file.close()


class TestFile:
    def test_each_incident_is_a_line_of_json(self, tmp_path):
        file = record_file.IncidentFile(str(tmp_path))
        for loss in (float('nan'), float('-inf'), 0.5, None):
            file.append(incident(loss=loss))
        lines = (tmp_path / 'slimguard' / 'incidents.jsonl').read_text().splitlines()
        assert [strictly(line)['loss'] for line in lines] == ['nan', '-inf', 0.5, None]
        written = [strictly(line) for line in lines]
        assert all(line.pop('process').endswith(':%d' % os.getpid()) for line in written)
        assert records_in(tmp_path) == written
        assert written[0]['tensors'] == ['loss']

    @pytest.mark.parametrize('kept', [1, 40, -1])
    def test_a_torn_last_line_is_left_out_and_the_next_writer_goes_on(self, tmp_path, kept):
        write(tmp_path, [1, 2])
        path = tmp_path / 'slimguard' / 'incidents.jsonl'
        first, second, _ = path.read_bytes().split(b'\n')
        path.write_bytes(first + b'\n' + second[:kept])
        write(tmp_path, [3])
        record = record_file.read_record(tmp_path)
        assert [incident.step for incident in record.incidents] == [1, 3]
        assert record.unreadable == 1

    def test_what_cannot_be_written_does_not_end_the_training(self, tmp_path):
        (tmp_path / 'slimguard').write_text('a file where the directory should be')
        file = record_file.IncidentFile(str(tmp_path))
        with LogLines() as lines:
            for _ in range(3):
                file.append(incident())
            file.close()
        assert 'incidents.jsonl cannot be written' in lines[0]
        assert lines[1].startswith('3 incidents are missing in ')
        assert len(lines) == 2

    def test_the_logdir_is_read_once(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        file = record_file.IncidentFile('logs')
        (tmp_path / 'elsewhere').mkdir()
        monkeypatch.chdir(tmp_path / 'elsewhere')
        file.append(incident())
        file.close()
        monkeypatch.chdir(tmp_path)
        assert steps('logs') == [4]
        assert not os.listdir(str(tmp_path / 'elsewhere'))

    def test_it_may_be_on_another_file_system(self):
        try:
            tf.io.gfile.makedirs('ram://there')
        except tf.errors.UnimplementedError:
            pytest.skip('ram:// is in TensorFlow 2.12 and later')
        logdir = 'ram://logs of test_incident_log'
        write(logdir, [1, 2])
        with tf.io.gfile.GFile(record_file.path_in(logdir), 'ab') as file:
            file.write(b'{"step": 9, "los')
        write(logdir, [3])
        assert steps(logdir) == [1, 2, 3]
        assert record_file.read_record(logdir).unreadable == 1
        file = record_file.IncidentFile(logdir)
        file.append(incident(4))
        tf.io.gfile.rmtree(logdir)
        file.append(incident(5))
        assert steps(logdir) == [5]

    def test_an_incident_of_a_huge_model_fits_in_a_line(self, tmp_path):
        huge = incident(reason='\u2665' * 10**6)
        names = tuple('gradient of layer_%d/weights' % n for n in range(100000))
        huge = dataclasses.replace(huge, tensors=names)
        file = record_file.IncidentFile(str(tmp_path))
        file.append(huge)
        file.close()
        (found,) = record_file.read_record(str(tmp_path)).incidents
        assert found.tensors[-1] == 'and 99000 more'
        assert found.reason.startswith('\u2665' * 1000) and found.reason.endswith('...')

    def test_values_of_numpy_are_numbers(self, tmp_path):
        file = record_file.IncidentFile(str(tmp_path))
        for loss in (np.float32(0.5), np.float32('nan')):
            file.append(incident(step=np.int64(3), loss=loss))
        first, second = record_file.read_record(str(tmp_path)).incidents
        assert (first.step, first.loss) == (3, 0.5) and np.isnan(second.loss)


def steps(logdir):
    return [found.step for found in record_file.read_record(logdir).incidents]


@contextlib.contextmanager
def a_disk_with_room_for(size):
    """Limits this process's files to `size` bytes: a write is cut short, and later ones fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestCutShort:
    def test_on_a_full_disk_incidents_are_lost_and_counted(self, tmp_path):
        write(tmp_path, range(300))
        path = record_file.path_in(str(tmp_path))
        file = record_file.IncidentFile(str(tmp_path))
        with LogLines() as lines:
            with a_disk_with_room_for(os.path.getsize(path) + 100):
                for step in (300, 301, 302):
                    file.append(incident(step))
            assert os.path.getsize(path) % 100  # a line was cut short
            file.append(incident(303))
            file.close()
        assert steps(str(tmp_path)) == [*range(300), 303]
        assert record_file.read_record(str(tmp_path)).unreadable == 1
        assert 'incidents.jsonl cannot be written: ' in lines[0]
        assert lines[1].startswith('3 incidents are missing in ') and len(lines) == 2

    def test_workers_share_it(self, tmp_path):
        # Threads that each open the file stand for processes: the system treats both alike.
        workers = [
            threading.Thread(target=write, args=(tmp_path, range(n, n + 300))) for n in (0, 1000)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(steps(str(tmp_path))) == [*range(300), *range(1000, 1300)]


class TestGone:
    def test_a_logdir_that_is_deleted_is_written_anew(self, tmp_path):
        logdir = tmp_path / 'logs'
        file = record_file.IncidentFile(str(logdir))
        file.append(incident(1))
        shutil.rmtree(str(logdir))
        for step in (2, 3):
            file.append(incident(step))
        assert steps(str(logdir)) == [2, 3]


GOOD = {'step': 1, 'reason': 'x', 'loss': 'nan', 'tensors': ['loss'], 'time': 1.0}


def record_of(tmp_path, *lines):
    (tmp_path / 'slimguard').mkdir()
    path = tmp_path / 'slimguard' / 'incidents.jsonl'
    path.write_bytes(
        b'\n'.join(
            line if isinstance(line, bytes) else json.dumps(line).encode('ascii') for line in lines
        )
    )
    return str(tmp_path)


class TestReading:
    def test_lines_that_are_no_incidents_are_counted(self, tmp_path):
        lines = [
            b'[' * 100000,
            b'{"step": 1, "los',
            b'\xff\xfe',
            b'\0' * 4096,
            [1],
            'a word',
            None,
            {},
            {'a': 1},
            dict(GOOD, loss='garbage'),
            dict(GOOD, loss=10**400),
            dict(GOOD, loss=[1.0]),
            dict(GOOD, step='x'),
            dict(GOOD, reason=None),
        ]
        found = record_file.read_record(record_of(tmp_path, GOOD, *lines, GOOD))
        assert (len(found.incidents), found.unreadable) == (2, len(lines))
        assert found.notes == [
            '14 lines of the record could not be read; a kill can cut one short.'
        ]

    def test_it_gives_back_the_incidents_that_were_written(self, tmp_path):
        written = [incident(1, loss=0.5), incident(2, loss=None), incident(3, loss=float('inf'))]
        written[2] = dataclasses.replace(written[2], step=None)
        written[1] = dataclasses.replace(written[1], held=False, state_lost=True)
        file = record_file.IncidentFile(str(tmp_path))
        for it in written:
            file.append(it)
        found = record_file.read_record(tmp_path)
        assert found == (written, 0)
        assert not found.is_foreign and not found.notes

    def test_a_file_of_something_else_is_foreign(self, tmp_path):
        for n, lines in enumerate(([[1], {'a': 1}], [b'\x89PNG'], [GOOD['reason']])):
            (tmp_path / str(n)).mkdir()
            assert record_file.read_record(record_of(tmp_path / str(n), *lines)).is_foreign

    def test_a_time_that_is_none_does_not_end_the_table(self):
        for time in (1e18, -1e18, 0.0):
            assert record_file.table([Incident(3, None, 'x', (), '', time)])[1][1:3] == ('', '3')


@pytest.mark.full
def test_a_training_without_an_incident_leaves_an_empty_record(tmp_path):
    model = Linear(bad=())
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    with LogLines() as lines:
        train_quietly(train_op, tmp_path, number_of_steps=2)
    assert os.path.getsize(record_file.path_in(str(tmp_path))) == 0
    assert record_file.read_record(tmp_path) == ([], 0)
    assert not [line for line in lines if 'incident' in line]


class TestLog:
    def test_a_restart_goes_on_with_the_numbers_of_the_record(self, tmp_path):
        write(tmp_path, [1, 2])
        record = incident_log.IncidentLog(str(tmp_path))
        with LogLines() as lines:
            for _ in range(3):
                record.record(incident())
            record.close()
        assert [line.partition(' at ')[0] for line in lines] == [
            'incident %d' % n for n in (3, 4, 5)
        ]
        assert 'not finite: loss, see incident 3; update not applied' in lines[1]

    def test_a_number_in_the_log_is_the_place_in_the_record_also_after_a_refused_save(self, folder):
        model = Linear(bad={1})
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        metric = tf1.get_local_variable('metric', [])  # no gate writes it
        saver = slimguard.FiniteSaver([*tf1.global_variables(), metric])
        session = slimguard.watch(tf1.Session(), on_nan='skip', logdir='logs')
        with session, LogLines() as lines:
            session.run([tf1.global_variables_initializer(), metric.initializer])
            session.run(train_op)
            session.run(metric.assign(np.nan))
            saver.save(session, 'logs/m')
            session.run(train_op)
        actions = [each.action for each in slimguard.read_incidents('logs')]
        assert actions == ['save refused', 'skip']
        assert [line.split()[1] for line in lines if line.startswith('incident ')] == ['2']

    def test_many_lines_are_held_back_and_counted(self):
        now = [0.0]
        record = incident_log.IncidentLog(clock=lambda: now[0])
        with LogLines() as lines:
            for number in range(10000):
                now[0] = number * 0.01
                record.record(incident())
            record.close()
        assert lines[1].startswith('no record of incidents is kept') and 'logdir=' in lines[1]
        del lines[1]
        assert lines[2].startswith('incident 3 ')
        assert '(999 more not shown)' in lines[4]
        assert len(lines) == 3 + 9 + 1
        assert lines[-1].startswith('10000 incidents in all; the last ')
        told = [int(line.rpartition('(')[2].split()[0]) for line in lines[3:-1]]
        last = int(lines[-1].split('the last ')[1].split()[0])
        assert 3 + len(told) + sum(told) + last == 10000

    def test_what_ends_or_turns_a_training_is_always_told(self):
        record = incident_log.IncidentLog(clock=lambda: 0.0)
        for _ in range(100):
            record.record(incident())
        with LogLines() as lines:
            record.record(incident(action='rollback'))
            record.record(incident(action='raise'))
        assert 'rolled back (97 more not shown' in lines[0]
        assert 'raising NanLossError' in lines[1]

    def test_from_the_second_alike_on_one_line_has_its_own_numbers_and_where_to_see_more(self):
        seconds = iter(range(0, 80, 20))  # so far apart that the log leaves none out
        record = incident_log.IncidentLog(clock=lambda: float(next(seconds)))
        why = '; cause not looked for: ...'
        with LogLines() as lines:
            for row in 1, 2:
                # One line of the user may have made several ops.
                cause = 'log of 0, in row %d; Log_%d; train.py:8' % (row, row)
                record.record(examined('log of 0, in row %d' % row), cause=cause)
            record.record(incident())
            record.record(incident(reason='not finite: loss' + why), why=why)
        told = [line.partition(': ')[2] for line in lines if line.startswith('incident ')]
        assert told[0].startswith('log of 0, in row 1; Log_1; train.py:8.\n')
        done = ', see incident 1; update not applied, batch skipped'
        assert told[1] == 'log of 0, in row 2%s.' % done
        assert told[2:] == ['not finite: loss%s.' % done, 'not finite: loss%s%s.' % (done, why)]

    @pytest.mark.every_cell
    @pytest.mark.parametrize('action', ['skip', 'rollback', 'stop', 'raise'])
    def test_under_each_policy_the_first_line_has_the_cause_and_your_line(self, action):
        record = incident_log.IncidentLog()
        with LogLines() as lines:
            cause, why = 'log of 0, in row 1; Log; train.py:8', "; 'x' does not apply, since y"
            it = dataclasses.replace(incident(action=action), advice='Do this.')
            record.record(it, cause=cause, why=why)
        first, second, *advised = lines[0].split('\n    ')
        assert first.partition(': ')[2] == cause + '.'
        assert second.startswith('update not applied, ') and second.endswith(why + '.')
        assert advised == ([] if action == 'raise' else ['Do this.'])  # the error has it

    def test_an_incident_that_was_held_back_is_not_referred_to(self):
        now = [0.0]
        record = incident_log.IncidentLog(clock=lambda: now[0])
        with LogLines() as lines:
            for _ in range(10):
                record.record(incident())
            for number in range(4):  # the log leaves out the first of these
                now[0] = 20.0 * number
                record.record(incident(reason='not finite: w'))
        told = [line for line in lines if 'not finite: w' in line]
        assert [line.split()[1] for line in told] == ['12', '13', '14']
        assert 'not finite: w, see incident 12' in told[1]

    def test_the_first_incident_of_a_cause_is_logged_at_once(self):
        record = incident_log.IncidentLog(clock=lambda: 0.0)
        with LogLines() as lines:
            for cause in ['log of 0'] * 9 + ['sqrt of a negative number'] * 9:
                record.record(examined(cause), cause=cause)
        told = [line.split()[1] for line in lines if line.startswith('incident ')]
        assert told == ['1', '2', '3', '10']

    def test_all_is_an_error_but_a_skip_with_a_cause_seen_before(self):
        class Levels(LogLines):
            def emit(self, record):
                self.lines.append((record.levelname, record.getMessage()))

        record = incident_log.IncidentLog(clock=lambda: 0.0)
        with Levels() as lines:
            for action in 'skip', 'skip', 'rollback', 'raise':
                record.record(incident(action=action))
        levels = [level for level, line in lines if line.startswith('incident ')]
        assert levels == ['ERROR', 'WARNING', 'ERROR', 'ERROR']


@pytest.mark.full
def test_many_incidents_leave_memory_flat_and_all_are_recorded(tmp_path):
    count = 1050
    model = Linear(bad=lambda draw: draw > 0)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(model.loss, on_nan=slimguard.Skip(20000), logdir=str(tmp_path))
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session, LogLines() as lines:
        for _ in range(count + 1):
            session.run(train_op)
    assert hook.incident_count == count
    assert len(hook.incidents) == 1000
    assert len(records_in(tmp_path)) == count
    assert len(lines) < 100


@pytest.mark.full
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
    assert [record['step'] for record in records_in(tmp_path)] == [2, 3]
    assert np.isfinite([v.simple_value for _, v in values]).all()
