"""A few kills of the soaks; `python tests/soak.py` and `cluster_soak.py` do many."""

from tests.children import ROOT, python


def test_whenever_it_is_killed_a_training_leaves_a_good_checkpoint_and_resumes():
    run = python(ROOT / 'tests' / 'soak.py', '--kills=4', '--seed=1')
    assert run.returncode == 0, run.stdout + run.stderr


def test_whichever_of_its_processes_is_killed_a_job_goes_on_and_ends_when_asked_to():
    run = python(ROOT / 'tests' / 'cluster_soak.py', '--faults=3', '--seed=1')
    assert run.returncode == 0, run.stdout + run.stderr
