"""A few kills of the soaks, and some checkpoints; the programs beside it do many."""

import pytest

from tests.helpers.children import ROOT, forked_python

pytestmark = pytest.mark.full


def soak(program, *flags):
    run = forked_python(ROOT / 'tests' / 'programs' / program, *flags)
    assert run.returncode == 0, run.stdout + run.stderr


def test_whenever_it_is_killed_a_training_leaves_a_good_checkpoint_and_resumes():
    soak('soak.py', '--kills=4', '--seed=1', '--relative')


def test_between_any_two_file_operations_the_state_file_names_the_newest_that_was_published():
    soak('state_soak.py', '--lives=15', '--seed=1')


def test_wherever_it_is_killed_in_a_rollback_no_restart_has_the_new_rate_and_the_old_state():
    soak('killed_in_a_rollback.py')


def test_whichever_of_its_processes_is_killed_a_job_goes_on_and_ends_when_asked_to():
    soak('cluster_soak.py', '--faults=3', '--seed=1', '--relative')


def test_whenever_it_is_killed_a_training_that_explodes_resumes_trusted_with_the_right_rate():
    soak('recovery_soak.py', '--kills=6', '--seed=1')


def test_a_checkpoint_that_a_thread_saves_beside_the_training_is_of_one_moment():
    soak('moment_soak.py', '--checkpoints=10')
