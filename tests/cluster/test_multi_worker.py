"""Two workers of a MultiWorkerMirroredStrategy, each a process, on the TensorFlow of Estimators."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.jobs import free_ports

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not hasattr(tf, 'estimator'), reason='TensorFlow has Estimators up to 2.15'),
]

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, 'tests', 'programs', 'multi_worker.py')


@pytest.mark.parametrize(
    'door, on_nan', [('hook', 'rollback'), ('unedited', 'skip'), ('hook', 'raise')]
)
def test_a_loss_that_is_bad_on_one_worker_is_written_by_none(tmp_path, door, on_nan):
    """No worker hangs, and both end with the same bits."""
    workers = ['localhost:%d' % port for port in free_ports(2)]
    processes = []
    for rank in range(2):
        config = {'cluster': {'worker': workers}, 'task': {'type': 'worker', 'index': rank}}
        environment = {**os.environ, 'PYTHONPATH': ROOT, 'TF_CONFIG': json.dumps(config)}
        with open(str(tmp_path / ('log%d' % rank)), 'wb') as log:
            command = [sys.executable, PROGRAM, str(tmp_path), door, on_nan]
            told = {'stdout': log, 'stderr': log, 'cwd': str(tmp_path), 'env': environment}
            processes.append(subprocess.Popen(command, **told))
    try:
        codes = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = [(tmp_path / ('log%d' % rank)).read_text(errors='replace') for rank in range(2)]
    assert codes == [0, 0], '\n'.join(log[-3000:] for log in logs)
    first, second = (json.loads((tmp_path / ('%d.json' % rank)).read_text()) for rank in range(2))
    assert first == second
    (incident,) = slimguard.read_incidents(str(tmp_path / '0'))
    assert incident.action == on_nan
    assert incident.reason.startswith('not finite: loss ')
    assert incident.reason.endswith(' (on rank 1)')
    assert first['error'] == (incident.reason if on_nan == 'raise' else '')
    assert door == 'unedited' or not (tmp_path / '1' / 'slimguard').exists()
