"""A few kills of the soak; `python tests/soak.py` does hundreds."""

from tests.children import ROOT, python


def test_whenever_it_is_killed_a_training_leaves_a_good_checkpoint_and_resumes():
    run = python(ROOT / 'tests' / 'soak.py', '--kills=4', '--seed=1')
    assert run.returncode == 0, run.stdout + run.stderr
