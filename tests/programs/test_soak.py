"""A few kills of the soaks, and some checkpoints; the programs beside it do many."""

import pytest

from tests.helpers.children import ROOT, forked_python

pytestmark = pytest.mark.full


@pytest.mark.parametrize('logdir', [[], ['--relative']], ids=['absolute', 'relative'])
def test_whenever_it_is_killed_a_training_leaves_a_good_checkpoint_and_resumes(logdir):
    run = forked_python(ROOT / 'tests' / 'programs' / 'soak.py', '--kills=4', '--seed=1', *logdir)
    assert run.returncode == 0, run.stdout + run.stderr


def test_between_any_two_file_operations_the_state_file_names_the_newest_that_was_published():
    run = forked_python(ROOT / 'tests' / 'programs' / 'state_soak.py', '--lives=40', '--seed=1')
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize('logdir', [[], ['--relative']], ids=['absolute', 'relative'])
def test_whichever_of_its_processes_is_killed_a_job_goes_on_and_ends_when_asked_to(logdir):
    run = forked_python(
        ROOT / 'tests' / 'programs' / 'cluster_soak.py', '--faults=3', '--seed=1', *logdir
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_whenever_it_is_killed_a_training_that_explodes_resumes_trusted_with_the_right_rate():
    run = forked_python(ROOT / 'tests' / 'programs' / 'recovery_soak.py', '--kills=8', '--seed=1')
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_checkpoint_that_a_thread_saves_beside_the_training_is_of_one_moment():
    run = forked_python(ROOT / 'tests' / 'programs' / 'moment_soak.py', '--checkpoints=20')
    assert run.returncode == 0, run.stdout + run.stderr
