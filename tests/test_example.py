"""The example as a user runs it: a process of its own, judged by the table it prints."""

import re
import subprocess

import pytest

from tests.children import ROOT, python


def start(*flags):
    return python(ROOT / 'examples' / 'slim_train.py', *flags, stderr=subprocess.STDOUT)


def run(tmp_path, *flags):
    """Runs the example to its end. Returns its table as a dict of strings."""
    done = start('--logdir', str(tmp_path), *flags)
    assert done.returncode == 0, done.stdout
    rows = re.findall(r'^(\w[\w -]*?) {2,}(.*)$', done.stdout.split('\n\n')[-1], re.MULTILINE)
    return dict(rows)


@pytest.mark.parametrize('strategy', ['--nocheck_numerics', '--check_numerics'])
def test_skipping_the_damaged_batches_reaches_the_accuracy(tmp_path, strategy):
    table = run(tmp_path, '--nan_every=10', '--on_nan=skip', strategy)
    assert float(table['test accuracy']) >= 0.95
    assert table['non-finite variables'] == '0'
    assert table['steps'] == '600'
    # 600 good batches are the first 666 without every tenth.
    assert table['incidents'] == table['skipped'] == '66'


def test_plain_tf_slim_ends_with_non_finite_variables(tmp_path):
    table = run(tmp_path, '--nan_every=10', '--stock', '--steps=100')
    assert int(table['non-finite variables']) > 0
    assert table['incidents'] == 'not watched'


def test_raise_ends_at_the_last_good_step_with_its_checkpoint(tmp_path):
    table = run(tmp_path, '--nan_every=10', '--on_nan=raise')
    assert table['outcome'].startswith('NanLossError: ')
    assert table['checkpoint'].endswith('model.ckpt-9')
    assert table['steps'] == '9'
    assert (table['incidents'], table['skipped']) == ('1', '0')
    assert table['non-finite variables'] == '0'


def test_an_unknown_policy_ends_the_run_before_it_trains(tmp_path):
    done = start('--logdir', str(tmp_path), '--on_nan=sometimes')
    assert done.returncode != 0
    assert "on_nan='sometimes'" in done.stdout
    assert not list(tmp_path.iterdir())
