"""An unedited detector with a far too large learning rate trains with a smaller one."""

import json
import os
import re

import pytest

from tests.helpers.children import ROOT, forked_python

pytestmark = pytest.mark.full
STEPS = 300
SCRIPT = os.path.join(ROOT, 'tests', 'programs', 'small_detector.py')


def detect(optimizer, logdir, *run, seed=1):
    """The process, the first loss, the last loss, the step, and the count of bad variables."""
    process = forked_python(*run, SCRIPT, optimizer, str(seed), str(STEPS), str(logdir))
    first, last = re.findall('(?:first|last) ([^ \n]+)', process.stdout)
    step, bad = re.findall(r'(?:step|not finite) (\d+)', process.stdout)
    return process, float(first), float(last), int(step), int(bad)


def under(*options):
    return ('-m', 'slimguard', 'run', '--capture=no', *options)


def test_without_a_smaller_learning_rate_it_explodes_after_each_rollback(tmp_path):
    process, _, _, step, bad = detect('Momentum', tmp_path, *under('--on_nan=skip:3,rollback:5'))
    assert process.returncode == 1 and step < STEPS and bad == 0
    assert 'rollback:3x0.1' in process.stderr and 'spike=True' in process.stderr


@pytest.mark.parametrize(
    'optimizer, options',
    [
        ('Momentum', ()),
        # These optimizers bound the size of a step, so they explode without an Inf: only max_loss
        # shows it. It is three times the first loss; smaller losses go unnoticed.
        ('RMSProp', ('--max_loss=50',)),
        ('Adam', ('--max_loss=50',)),
    ],
    ids=['Momentum', 'RMSProp', 'Adam'],
)
def test_with_a_smaller_one_after_each_rollback_it_trains(optimizer, options, tmp_path):
    run = under('--on_nan=skip:3,rollback:5x0.3,raise', *options)
    # On 2.21 and 1.15, one of sixty trainings with ten seeds did not; this seed ends with a far
    # smaller loss.
    process, first, last, step, bad = detect(optimizer, tmp_path, *run, seed=10)
    assert process.returncode == 0, process.stderr
    assert (step, bad) == (STEPS, 0) and last < first
    with open(str(tmp_path / 'slimguard' / 'learning_rate.json')) as file:
        assert json.load(file)['factor'] < 1
