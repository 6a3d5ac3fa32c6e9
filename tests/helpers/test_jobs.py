"""The harness of the cluster tests: processes start, talk, die, start again and leave nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from tests.helpers.children import ROOT, environment
from tests.helpers.jobs import Job
from tests.helpers.processes import is_alive
from tests.helpers.template import Forked

tf1 = tf.compat.v1


def count(role, steps):
    """Adds to a variable on the parameter server, and says each sum."""
    with role.device():
        total = tf1.get_variable('total', [], initializer=tf1.zeros_initializer())
        add = total.assign_add(1.0)
    with tf1.Session(role.server().target) as session:
        if role.is_chief:
            session.run(tf1.global_variables_initializer())
        for _ in range(steps):
            role.say(float(session.run(add)))
    return role.task, os.getpid()


def fail(role):
    if role.is_chief:
        raise KeyError('a reason')
    os._exit(3)


def sleep(role):
    role.say(os.getpid())
    time.sleep(1000)


class SlowOutput:
    """A stdout that holds what is written until it is flushed, and takes its time for that."""

    def __init__(self, output):
        self._output = output
        self._held = []

    def write(self, text):
        self._held.append(text)

    def flush(self):
        time.sleep(0.5)
        self._output.write(''.join(self._held))
        self._output.flush()


def speak(role):
    sys.stdout = SlowOutput(sys.stdout)
    print('the last word')


def test_a_parameter_server_keeps_the_state_until_it_is_killed_and_comes_back_on_its_port():
    with Job(count, 2, ps=1, workers=1) as job:
        assert [job.hear('worker', 0), job.hear('worker', 0)] == [1.0, 2.0]
        task, first = job.wait('worker', 0).value
        assert task == 0
        job.kill('ps', 0)
        job.start('ps', 0)
        job.start('worker', 0)
        assert job.hear('worker', 0) == 1.0
        assert job.wait('worker', 0).value[1] != first


def test_a_role_tells_its_error_or_that_it_died():
    with Job(fail, ps=0, workers=2) as job:
        chief, other = job.wait_for_workers()
        with pytest.raises(RuntimeError, match='a reason'):
            job.hear('worker', 0)
    assert (chief.error, chief.message) == ('KeyError', "'a reason'")
    assert 'Traceback' in chief.log
    assert other.error == 'Killed'


def test_the_log_is_whole_when_a_role_has_ended():
    with Job(speak, ps=0, workers=1) as job:
        assert job.wait('worker', 0).log.splitlines()[-1] == 'the last word'


def test_a_role_that_hangs_says_where():
    with Job(sleep, ps=0, workers=1) as job:
        number = job.hear('worker', 0)
        with pytest.raises(TimeoutError, match='in sleep'):
            job.wait('worker', 0, timeout=0.1)
    assert not is_alive(number)


def test_what_cannot_be_sent_to_a_process_is_refused_here():
    with pytest.raises(Exception, match='pickle|local object'):
        with Job(lambda role: None):
            pass


ORPHANS = """
import time

from tests.helpers import test_jobs
from tests.helpers.jobs import Job

with Job(test_jobs.sleep, workers=2) as job:
    print(job.hear('worker', 0), job.hear('worker', 1), flush=True)
    while True:
        time.sleep(0.1)  # Ctrl-C a moment before a long sleep would be heard after it
"""


# Who ignores Ctrl-C starts programs that do, and that one would never end.
@pytest.mark.usefixtures('ctrl_c_is_pythons')
@pytest.mark.parametrize('end', ['kill', pytest.param('interrupt', marks=pytest.mark.slow)])
def test_no_role_outlives_the_tests(end):
    tests = Forked(
        ['-c', ORPHANS],
        environment(),
        cwd=str(ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with tests:
        roles = [int(word) for word in tests.stdout.readline().split()]
        assert len(roles) == 2 and all(map(is_alive, roles))
        tests.send_signal(signal.SIGKILL if end == 'kill' else signal.SIGINT)
    deadline = time.time() + 20
    while any(map(is_alive, roles)) and time.time() < deadline:
        time.sleep(0.02)
    assert not any(map(is_alive, roles))
