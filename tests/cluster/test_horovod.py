"""Two real ranks of Horovod over Gloo, where it is installed; all cases in one pair of processes.

Only rank 1 has bad values, with capture on; and it gets the signals alone, or first.
tests/gate/test_ranks.py tests ranks of any library, on every TensorFlow.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf1

import slimguard

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec('horovod') is None,
        reason='Horovod is not installed; CONTRIBUTING.md says how it is built',
    ),
]

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, 'tests', 'programs', 'horovod_ranks.py')

# By case: the reason of each incident, and the action.
LOSS, SKIP = 'not finite: loss (add) (on rank 1)', 'skip'
BATCH = 'not finite: loss (add), gradient of w (on rank 1)'
EXPECTED = {
    'nan': [(BATCH, SKIP)],
    'loss': [(LOSS, SKIP)] * 3,
    'average': [('not finite: update of average (on rank 1)', SKIP)],
    'max_loss': [('above max_loss=10000: loss (add) (on rank 1)', SKIP)] * 2,
    'spikes': [('above its limit: loss (on rank 1)', SKIP)] * 2,
    'raise': [(LOSS, 'raise')],
    'stop': [(LOSS, 'stop')],
    'rollback late': [(LOSS, 'rollback')],
    'rollback early': [(LOSS, 'rollback')],
    'none': [],
    'train': [(LOSS, SKIP)],
    'plain session': [(BATCH, SKIP)],
    'fp16': [(BATCH, SKIP)],
    'micro-batches': [None],
    'sparse': [(BATCH, SKIP)],
    'Ctrl-C': [],
    'Ctrl-C in train': [],
    'other graph': [],
    'unedited Ctrl-C': [],
    'unedited': [(LOSS, SKIP)] * 2,
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """The folder with the results of both ranks."""
    folder = tmp_path_factory.mktemp('ranks')
    environment = {
        **os.environ,
        'PYTHONPATH': ROOT,
        # Ranks that wait for each other end with a message after this time.
        'HOROVOD_STALL_CHECK_TIME_SECONDS': '60',
        'HOROVOD_STALL_SHUTDOWN_TIME_SECONDS': '120',
    }
    launch = [sys.executable, '-m', 'horovod.runner.launch', '--gloo', '-np', '2']
    command = [*launch, '-H', 'localhost:2', sys.executable, PROGRAM, str(folder)]
    with open(str(folder / 'log'), 'wb') as log:
        code = subprocess.call(
            command, env=environment, cwd=str(folder), stdout=log, stderr=log, timeout=1200
        )
    said = (folder / 'log').read_text(errors='replace')
    assert code and 'Exit code: 143' in said, said[-4000:]  # the last case is SIGTERM
    return folder


@pytest.fixture(scope='module')
def ranks(folder):
    """By rank, its results in each case."""
    return [json.loads((folder / ('rank%d.json' % rank)).read_text()) for rank in range(2)]


@pytest.mark.parametrize('case', EXPECTED)
def test_all_ranks_do_the_same_and_the_first_keeps_the_record(case, folder, ranks):
    first, second = ranks[0][case], ranks[1][case]
    for same in ('bits', 'step', 'draws', 'error'):
        assert first[same] == second[same], same
    done = [
        [each[key] for each in rank['incidents']] for rank in (first, second) for key in (0, 2, 4)
    ]
    assert done[:3] == done[3:]
    record = slimguard.read_incidents(str(folder / case.replace(' ', '_')))
    expected = EXPECTED[case]
    assert [each.action for each in record] == [each[1] if each else SKIP for each in expected]
    for incident, told in zip(record, expected):
        assert told is None or incident.reason == told[0]
        assert incident.diagnosis is None  # the cause is on rank 1


def test_the_rank_that_was_bad_finds_the_cause(ranks):
    diagnosis = ranks[1]['nan']['incidents'][0][3]
    assert 'bad data: 2 NaN among 12 values, in rows 0, 2' in diagnosis


def test_raise_ends_all_ranks_with_the_same_error_and_the_last_state_is_saved(folder, ranks):
    assert ranks[0]['raise']['error'] == 'NanLossError: ' + LOSS
    assert os.path.exists(str(folder / 'raise' / 'model.ckpt-5.index'))


@pytest.mark.parametrize(
    'case, step', [('Ctrl-C', 9), ('Ctrl-C in train', 9), ('unedited Ctrl-C', 14), ('SIGTERM', 14)]
)
def test_a_signal_that_one_rank_hears_ends_all_after_the_next_step(case, step, folder, ranks):
    """Rank 0 saves that step, even if that takes longer than a launcher waits for ranks to end.

    In train, rank 0 gets a Ctrl-C of its own in the midst of that step.
    """
    if case == 'SIGTERM':
        assert [(folder / ('draws%d' % rank)).read_text() for rank in range(2)] == ['14', '14']
    else:
        assert ranks[0][case]['error'] == 'KeyboardInterrupt'
        assert ranks[0][case]['draws'] == step
    saved = tf1.train.latest_checkpoint(str(folder / case.replace(' ', '_')))
    assert tf1.train.load_variable(saved, 'global_step') == step


def test_after_a_restart_all_ranks_have_the_factor_that_the_first_kept(ranks):
    first, second = (rank['restart'] for rank in ranks)
    assert first['factor'] == second['factor'] == 0.5
    assert (first['step'], first['bits']) == (40, second['bits'])


def test_ranks_whose_graphs_differ_say_so_before_the_first_step(ranks):
    said = ranks[0]['other graph']['error']
    assert 'the graphs of the ranks differ' in said
    assert 'rank 1 checks what rank 0 does not (not finite: update of more' in said
    assert ranks[0]['other graph']['draws'] <= 1


def test_an_unedited_script_keeps_no_record_on_other_ranks(folder):
    assert not (folder / 'slimguard-logs').exists()


def test_a_rollback_goes_to_one_state(ranks):
    assert ranks[0]['rollback early']['incidents'][0][4] == 'the state before the first step'
    assert ranks[0]['rollback late']['incidents'][0][4].startswith('a snapshot of global step ')
