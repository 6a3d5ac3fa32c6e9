"""The harness of the cluster tests: processes start, talk, die, start again and leave nothing."""

import os
import subprocess
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


@pytest.mark.full
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


@pytest.mark.full
def test_a_role_tells_its_error_or_that_it_died():
    with Job(fail, ps=0, workers=2) as job:
        chief, other = job.wait_for_workers()
        with pytest.raises(RuntimeError, match='a reason'):
            job.hear('worker', 0)
    assert (chief.error, chief.message) == ('KeyError', "'a reason'")
    assert 'Traceback' in chief.log
    assert other.error == 'Killed'


@pytest.mark.full
def test_a_role_that_hangs_says_where():
    with Job(sleep, ps=0, workers=1) as job:
        number = job.hear('worker', 0)
        with pytest.raises(TimeoutError, match='in sleep'):
            job.wait('worker', 0, timeout=0.1)
    assert not is_alive(number)


ORPHANS = """
import time

from tests.helpers import test_jobs
from tests.helpers.jobs import Job

with Job(test_jobs.sleep, workers=2) as job:
    print(job.hear('worker', 0), job.hear('worker', 1), flush=True)
    while True:
        time.sleep(1)
"""


@pytest.mark.full
def test_no_role_outlives_the_tests():
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
        tests.kill()
    deadline = time.time() + 240
    while any(map(is_alive, roles)) and time.time() < deadline:
        time.sleep(0.02)
    assert not any(map(is_alive, roles))
