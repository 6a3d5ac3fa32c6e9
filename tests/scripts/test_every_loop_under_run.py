"""Every loop with every policy, under `run`, in a script that knows nothing of it."""

import random

import pytest
import tensorflow as tf

from slimguard.checkpoints import checkpoint_reader
from tests.helpers.children import ROOT, forked_python
from tests.helpers.loops import has_estimators
from tests.helpers.models import records_in

pytestmark = pytest.mark.full

SCRIPT = ROOT / 'tests' / 'data' / 'scripts' / 'every_loop.py'
NATIVE = tf.__version__.startswith('1.')
STEPS = 25
# These save no checkpoint in so few steps. Going back each time, they begin anew each time.
BEGIN_ANEW = ['of_slim', 'of_slims_training']
LOOPS = ['plain', 'interactive', 'prepared', 'fed', 'monitored', 'supervised']
LOOPS += ['of_slim', 'of_slims_training'] + ['estimated'] * has_estimators()
POLICIES = ['skip', 'raise', 'stop', 'rollback:9', 'skip:1,rollback:9,raise']
CELLS = random.Random(3).sample([(loop, policy) for loop in LOOPS for policy in POLICIES], 12)


@pytest.mark.parametrize('loop, policy', CELLS)
def test_what_is_damaged_is_written_nowhere_and_what_happened_is_on_record(loop, policy, tmp_path):
    logdir = tmp_path / 'logs'
    options = ['--on_nan=' + policy] + ([] if NATIVE else ['--tf1'])
    run = forked_python(
        '-m', 'slimguard', 'run', *options, SCRIPT, loop, logdir, STEPS, finds='tensorflow'
    )
    said = run.stderr + run.stdout
    records = records_in(logdir)
    # The first and the last are diagnosed in any case; the others as far as there is time.
    assert None not in (records[0]['diagnosis'], records[-1]['diagnosis'])
    told = [each['diagnosis'] for each in records if each['diagnosis'] is not None]
    assert all('NaN among 32 values, in row 3' in diagnosis for diagnosis in told), said
    assert all(each['held'] for each in records)
    for checkpoint in checkpoint_reader.checkpoints_in(str(logdir)):
        assert checkpoint_reader.inspect(checkpoint.path).is_good, checkpoint
    actions = [each['action'] for each in records]
    ending = run.stderr.splitlines()[-1]
    assert ending.startswith('slimguard: ') and 'incident' in ending, said
    assert 'NOT guarded' not in said
    assert '%d incident' % len(records) in ending and 'guarded slimguard/' not in ending, said
    if policy == 'rollback:9' and loop in BEGIN_ANEW:
        assert actions == ['rollback'] * 9 + ['raise'] and run.returncode == 1, said
    elif policy.startswith(('skip', 'rollback')):
        assert run.returncode == 0, said
        assert set(actions) <= {'skip', 'rollback'} and actions[0] in policy
        assert len(actions) >= 2
    else:
        assert actions == [policy]
        assert records[0]['step'] == 7
        assert (run.returncode == 0) == (policy == 'stop'), said
        if policy == 'raise':
            assert 'NanLossError' in run.stderr, said
