"""Sets up every test: a quiet TensorFlow in graph mode, a graph of its own, and `--full`.

`pytest` runs the first cell of each test with parameters, or every cell if the test is marked
`every_cell`, and no test that is marked `full`. `pytest --full` runs everything. A test that is
named on the command line (`tests/test_x.py::test_y`) always runs.
"""

import gc
import itertools
import os
import pathlib
import signal

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# A test's import of ipykernel sets this on Python 3.7. Set here, it is the same in all processes.
os.environ.setdefault('PYDEVD_USE_FRAME_EVAL', 'NO')

import pytest

_ended = itertools.count(1)  # counts the tests that have ended


def pytest_addoption(parser):
    parser.addoption('--full', action='store_true', help='run all tests, with all parameters')


@pytest.hookimpl(hookwrapper=True)
def pytest_xdist_auto_num_workers():
    """One process more than there are cores: some tests wait for programs, and leave one idle."""
    cores = yield
    cores.force_result(cores.get_result() + 1)


@pytest.hookimpl(trylast=True)  # after -m and -k have selected tests
def pytest_collection_modifyitems(config, items):
    if config.getoption('--full') or any('::' in argument for argument in config.args):
        return
    kept = {}
    for item in items:
        all_cells = item.get_closest_marker('every_cell')
        if not item.get_closest_marker('full'):
            kept.setdefault(item.nodeid if all_cells else item.nodeid.partition('[')[0], item)
    config.hook.pytest_deselected(items=list(set(items).difference(kept.values())))
    items[:] = kept.values()


def _tf1():
    import tensorflow.compat.v1 as tf1  # not above: xdist's own process runs no test

    return tf1


def pytest_collectstart():
    """Runs before the first test file is imported."""
    _tf1().disable_eager_execution()
    _tf1().logging.set_verbosity(_tf1().logging.ERROR)


def pytest_collection_finish():
    """Turns automatic garbage collection off, since it goes over the many objects of graphs."""
    gc.disable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol():
    yield
    if next(_ended) % 50 == 0:
        from tensorflow.python.framework import ops

        known = ops._gradient_registry._registry  # it keeps each entry, and its graph, for ever
        for name in [name for name in known if name.startswith('CustomGradient-')]:
            del known[name]
        gc.collect()


@pytest.fixture(autouse=True)
def graph():
    """A fresh default graph with a fixed seed."""
    tf1 = _tf1()
    with tf1.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        yield graph


@pytest.fixture
def ctrl_c_is_pythons():
    """Ctrl-C raises KeyboardInterrupt, even if a shell runs the tests in the background."""
    given = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, given)


def _control_flow(version):
    switch = [_tf1().disable_control_flow_v2, _tf1().enable_control_flow_v2]
    was_v2 = _tf1().control_flow_v2_enabled()
    switch[version == 'v2']()
    yield version
    switch[was_v2]()


@pytest.fixture(params=['v1', 'v2'])
def control_flow(request):
    """With 'v1', branches and loops are ops of the graph; with 'v2', they are functions."""
    yield from _control_flow(request.param)


@pytest.fixture
def control_flow_v1():
    yield from _control_flow('v1')


@pytest.fixture
def kind(request, control_flow_v1):
    """Ref variables; resource variables; these with branches that are functions."""
    if request.param == 'functions':
        _tf1().enable_control_flow_v2()
    _tf1().get_variable_scope().set_use_resource(request.param != 'ref')
    return request.param


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the test's own, as a path relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    os.mkdir('logs')
    return pathlib.Path('logs')
