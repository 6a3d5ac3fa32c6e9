"""Benchmarks, which people run by hand, still fit the internal parts of the package they use."""

import importlib
import sys

import pytest
import tensorflow as tf

from tests.helpers.children import ROOT

tf1 = tf.compat.v1


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a script of the folder `benchmarks`."""
    monkeypatch.syspath_prepend(str(ROOT / 'benchmarks'))
    monkeypatch.setattr(sys, 'argv', ['benchmark', '--quick'])
    verbosity = tf1.logging.get_verbosity()
    yield importlib.import_module
    tf1.logging.set_verbosity(verbosity)
    for path in (ROOT / 'benchmarks').glob('*.py'):
        sys.modules.pop(path.stem, None)


@pytest.mark.full
def test_a_gate_can_look_in_the_ways_that_were_not_chosen(benchmark):
    gate_cost = benchmark('gate_cost')
    for look in gate_cost.OTHER_LOOKS.values():
        stepper = gate_cost.Stepper(gate_cost.two_layers, guarded=True, all_are_small=look)
        _, bad, step = stepper.step()
        assert not bad.any() and step == 2


@pytest.mark.full
def test_the_loops_that_are_compared_train(benchmark):
    loop_cost = benchmark('loop_cost')
    assert all(loop_cost.saving_step(on_nan, 20) > 0 for on_nan in loop_cost.SAVING.values())


@pytest.mark.full
def test_the_table_for_a_gpu_passes_on_a_cpu(benchmark):
    gpu = benchmark('gpu')
    assert gpu.bad_step_holds('/cpu:0', gpu.convnet, 16, [2]).startswith('pass; ')
    assert gpu.rollback_holds('/cpu:0', gpu.convnet, 16, [2]).startswith('pass; ')


@pytest.mark.every_cell
@pytest.mark.parametrize(
    'name',
    ['capture_cost', 'cluster_cost', 'device_cost', 'gpu', 'import_time', 'save_cost', 'spikes']
    + ['what_is_lost'],
)
def test_what_a_benchmark_imports_is_there(benchmark, name):
    assert benchmark(name).__doc__
