"""numpy's old names under `run --tf1`."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard.unedited import tf1_names
from tests.helpers.children import ROOT, forked_python

SCRIPT = ROOT / 'tests' / 'data' / 'scripts' / 'numpy_names.py'
NATIVE = tf.__version__.startswith('1.')

# Runs a script as the command line does, in this process, and then goes on.
IN_PROCESS = """\
import builtins
import sys

import numpy as np

from slimguard.__main__ import main

script = sys.argv[1]
before = builtins.__import__, set(dir(np))
for _ in range(2):
    main(['run', '--tf1', script])
    assert np.int is np.int64  # the script has set it
    numpys = {'int': int} if 'int' in before[1] else {}
    del np.int
    vars(np).update(numpys)
    assert before == (builtins.__import__, set(dir(np)))
"""


@pytest.mark.full
def test_a_script_finds_them_and_then_numpy_is_as_it_was(tmp_path):
    (tmp_path / 'program.py').write_text(IN_PROCESS)
    run = forked_python(tmp_path / 'program.py', SCRIPT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ['the end'] * 2


def test_they_mean_what_they_meant():
    dropped = tf1_names.numpys_old_names()
    assert set(dropped).isdisjoint(dir(np))
    assert None not in dropped.values()
    if not NATIVE:
        assert dropped['int'] is int
        return
    for old, new in (pair.split('=') for pair in tf1_names.RENAMED):
        if old == 'trapz':
            continue  # this numpy is too old for the new name
        was, now = getattr(np, old), getattr(np, new)
        if callable(was) and not isinstance(was, type):
            assert np.array_equal(was([[0.5, 2.0]]), now([[0.5, 2.0]])), old
        else:
            assert was is now or was == now or np.isnan(was) and np.isnan(now), old
    assert np.asscalar(np.ones(1)) == tf1_names.asscalar(np.ones(1)) == 1
