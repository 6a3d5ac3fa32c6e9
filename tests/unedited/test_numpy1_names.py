"""numpy's old names under `run --tf1`."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard.unedited import numpy1_names
from tests.helpers.children import ROOT, forked_python

SCRIPT = ROOT / 'tests' / 'data' / 'scripts' / 'numpy_names.py'
NATIVE = tf.__version__.startswith('1.')
on_tensorflow_2 = pytest.mark.skipif(NATIVE, reason='the numpy of TensorFlow 1 has all names')
said = 'slimguard: numpy %s has dropped np.' % np.__version__

# Runs a script as the command line does, and goes on.
IN_PROCESS = """\
import builtins
import sys

import numpy as np

from slimguard.__main__ import main

script = sys.argv[1]
before = builtins.__import__, vars(np).get('__getattr__')
numpys = {'int': np.int} if hasattr(np, 'int') else {}
for _ in range(2):
    main(['run', '--tf1', script])
    assert before == (builtins.__import__, vars(np).get('__getattr__'))
    del np.int  # the script has set it
    vars(np).update(numpys)
assert hasattr(np, 'int') == bool(numpys)
"""


@on_tensorflow_2
def test_who_needs_none_hears_nothing(tmp_path):
    (tmp_path / 'script.py').write_text('import numpy as np\nprint(np.float64, np.bool_)')
    run = forked_python('-m', 'slimguard', 'run', '--tf1', tmp_path / 'script.py')
    assert run.returncode == 0
    assert said not in run.stderr


@pytest.mark.full
def test_a_script_finds_them_one_line_says_so_and_then_numpy_is_as_it_was(tmp_path):
    (tmp_path / 'program.py').write_text(IN_PROCESS)
    run = forked_python(tmp_path / 'program.py', SCRIPT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ['the end'] * 2
    told = said + 'float: --tf1 puts it back, as all its old names\n'
    assert run.stderr.count(said) == run.stderr.count(told) == (0 if NATIVE else 2)


def test_they_mean_what_they_meant():
    dropped = numpy1_names._dropped()
    assert set(dropped).isdisjoint(dir(np))
    assert None not in dropped.values()
    if not NATIVE:
        assert dropped['int'] is int
        return
    for name, meant in numpy1_names._BUILTINS.items():
        assert getattr(np, name) is meant
    for name, new in numpy1_names._RENAMED.items():
        old, new = getattr(np, name), getattr(np, new, None)
        if name == 'trapz':
            continue  # whose new name is newer than this numpy
        if callable(old) and not isinstance(old, type):
            assert np.array_equal(old([[0.5, 2.0]]), new([[0.5, 2.0]])), name
        else:
            assert old is new or old == new or np.isnan(old) and np.isnan(new), name
    assert np.NINF == -np.inf
    assert np.asscalar(np.ones(1)) == numpy1_names._asscalar(np.ones(1)) == 1
