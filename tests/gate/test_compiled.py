"""XLA may compile the model, even with fast math: the gate still finds each NaN."""

import pytest

from tests.helpers.children import ROOT, forked_python

CLUSTERING = '--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit'
# TensorFlow 1.15 compiles so by default; newer ones need the flags.
FAST = '--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false '
FAST += '--xla_cpu_fast_math_honor_infs=false'
WORLDS = {
    'clusters': ([], CLUSTERING),
    'a scope without Grappler': (['--scope', '--without-grappler'], ''),
}


@pytest.mark.full
def test_good_steps_of_ref_variables_give_the_bits_of_unguarded_ones():
    require('the same', ['--good-steps'], CLUSTERING)


@pytest.mark.full
@pytest.mark.parametrize('world', WORLDS)
def test_what_is_not_finite_is_held_whatever_xla_compiles(world):
    require('held', *WORLDS[world])


def require(answer, arguments, flags):
    done = forked_python(
        '-m',
        'tests.helpers.compiled',
        *arguments,
        cwd=str(ROOT),
        variables={'TF_XLA_FLAGS': flags, 'XLA_FLAGS': FAST},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(answer)
