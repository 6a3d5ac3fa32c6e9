"""What every test needs: a quiet TensorFlow in graph mode, and a graph of its own.

With `--share=1/2` half of the tests run, and with `--share=2/2` the others. A test with parameters
has a cell for each combination of them: with `--cells=most` two thirds of its cells run, and with
`--cells=others` the other third.
With `--plain-graphs=1/2` TensorFlow rewrites no graph in the tests of one half of the files, and
with `--plain-graphs=2/2` of the other; and each graph of the rest less thoroughly.
"""

import argparse
import collections
import functools
import gc
import itertools
import os
import pathlib
import re
import signal
import zlib

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# As ipykernel has it for Python 3.7, once a test imports it: processes are to begin alike.
os.environ.setdefault('PYDEVD_USE_FRAME_EVAL', 'NO')

import pytest


def pytest_addoption(parser):
    parser.addoption(
        '--share',
        type=_share,
        metavar='N/M',
        help='run only the N-th of M shares; each test is in one of them, always the same',
    )
    parser.addoption(
        '--cells',
        choices=['most', 'others', 'one'],
        help='of a quick test with parameters run "most" of its cells, which is two thirds; the '
        '"others", or one if there are none; or only "one" of the others, and no test that needs '
        'no TensorFlow',
    )
    parser.addoption(
        '--tell',
        type=_appended,
        metavar='FILE',
        help='append a line to FILE for each test that has passed, and for each that --cells or a '
        'share left out; what FILE has of another run stays',
    )
    parser.addoption(
        '--share-slow',
        type=_share,
        metavar='N/M',
        help='run all quick tests, but only the N-th of M shares of the slow ones',
    )
    parser.addoption(
        '--plain-graphs',
        type=_share,
        metavar='N/M',
        help='in the N-th of M shares of the files, the sessions of the test process run graphs as '
        'they were built, without the rewriting (Grappler) that takes a third of the time; in '
        'the others it goes over each graph once, not twice. Slow tests run as without the option',
    )


def _share(text):
    match = re.match(r'(\d+)/(\d+)$', text)
    number, shares = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= shares:
        raise argparse.ArgumentTypeError(
            '%r is not N/M, with 1 <= N <= M, such as 1/6 for the first of six shares' % text
        )
    return number, shares


def _appended(path):
    try:
        with open(path, 'a'):
            return path
    except OSError as error:
        raise argparse.ArgumentTypeError(
            '%r cannot be written: %s' % (path, error.strerror)
        ) from None


def pytest_collectstart(collector):
    """Runs before the first test file is imported, which takes TensorFlow as it is made here.

    Not sooner: xdist's own process reads this file as well, collects nothing, and needs no
    TensorFlow, for which its workers would wait.
    """
    from tests.helpers import message_text

    gc.disable()  # what is imported stays
    tf1 = _tf1()
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    _pass_over_deprecations()
    message_text.write_in_c()
    if collector.config.getoption('--plain-graphs'):
        _install_plain_graphs()


@functools.lru_cache(maxsize=None)
def _pass_over_deprecations():
    """Has TensorFlow not look for deprecated arguments; it would not warn of them here anyway.

    It inspects the signature of a deprecated function at each call. With 1.15 that takes a
    twentieth of the time of the tests.

    Returns:
      What ends it, kept by the cache as long as the process lasts.
    """
    from tensorflow.python.util import deprecation

    silence = deprecation.silence()
    silence.__enter__()
    return silence


@functools.lru_cache(maxsize=None)
def _install_plain_graphs():
    from tests.helpers import plain_graphs

    plain_graphs.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Ahead of all fixtures, some of which open sessions."""
    share = item.config.getoption('--plain-graphs')
    if share is not None:
        from tests.helpers import plain_graphs

        if item.get_closest_marker('rewritten') or item.get_closest_marker('slow'):
            plain_graphs.passes = None
        else:
            # Whole files: what is rewritten may round otherwise, and tests of one share trainings.
            is_in = _is_in(share, item.nodeid.partition('::')[0])
            plain_graphs.passes = 0 if is_in else 1


def _tf1():
    import tensorflow.compat.v1 as tf1

    return tf1


@pytest.hookimpl(trylast=True)  # of those that -m selects
def pytest_collection_modifyitems(config, items):
    share, slow_share = config.getoption('--share'), config.getoption('--share-slow')
    cells = _cells(items, config.getoption('--cells'))
    kept, left = [], []
    for item in items:
        # All the parameters of a test stay together, with the fixtures that are made for them; the
        # slow ones are few and long.
        is_in = item.nodeid in cells and _is_in(share, _function_of(item))
        if item.get_closest_marker('slow'):
            is_in = is_in and _is_in(slow_share, item.nodeid)
        (kept if is_in else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        if os.environ.get('PYTEST_XDIST_WORKER', 'gw0') == 'gw0':  # the others leave out the same
            for item in left:
                _tell(config, 'left', item)
    items[:] = _slow_ones_first(kept)


def _cells(items, which):
    """The ids of the tests that run. Of those with parameters, which cells they are, is drawn.

    In a grid of threes each third cell has the same value of one parameter, so order cannot decide.
    Nor can ids: versions of pytest make different ones of the same parameters.
    """
    kept, shared = set(), collections.defaultdict(list)
    for item in items:
        _told_as[item.nodeid] = item.nodeid
        if which == 'one' and item.get_closest_marker('no_tensorflow'):
            continue
        if any(map(item.get_closest_marker, _NOT_SHARED)):
            kept.add(item.nodeid)
        else:
            shared[_function_of(item)].append(item)
    for name, cells in shared.items():
        for number, item in enumerate(cells):
            _told_as[item.nodeid] = '%s[%d of %d]' % (name, number, len(cells))
        kept.update(item.nodeid for item in _of_the_cells(cells, which))
    return kept


def _of_the_cells(cells, which):
    if which is None:
        return cells
    cells = sorted(cells, key=lambda item: _number_of(_told_as[item.nodeid]))
    most = 2 * len(cells) // 3 or 1
    others = cells[most:] or cells[-1:]
    return {'most': cells[:most], 'others': others, 'one': cells[-1:]}[which]


# Marks of the tests whose cells are not shared out. The slow ones have shares of their own.
_NOT_SHARED = 'slow', 'skipif', 'not_shared'

# By its id, the name of a test that is the same with each TensorFlow and each version of pytest.
_told_as = {}


def _tell(config, what, item):
    """Adds a line to the file that was asked for."""
    path = config.getoption('--tell')
    if path:
        with open(path, 'a') as file:
            file.write('%s %s\n' % (what, _told_as[item.nodeid]))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    result = yield
    report = result.get_result()
    if report.when == 'call' and report.passed:
        _tell(item.config, 'passed', item)


def _slow_ones_first(items):
    """The items, so that no core is left alone with a slow one at the end.

    xdist gives the first half to one worker, the second half to the other.
    """
    slow = [item for item in items if item.get_closest_marker('slow')]
    quick = [item for item in items if not item.get_closest_marker('slow')]
    half = (len(items) + 1) // 2 - len(slow[::2])
    return slow[::2] + quick[:half] + slow[1::2] + quick[half:]


def _function_of(item):
    return item.nodeid.partition('[')[0]


def pytest_collection_finish(session):
    """Passes over what was imported, which stays."""
    if session.items:
        from tests.helpers import module_walk

        module_walk.pass_over_libraries()
    gc.collect()
    gc.freeze()


# So many tests leave behind what some hundred megabytes hold.
_TESTS_BETWEEN_COLLECTIONS = 50
_ended = itertools.count(1)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol():
    """Collects garbage after every so many tests, and not whenever there may be some.

    Runs where tests run: xdist's own process only hears of them, and has no TensorFlow.
    """
    yield
    if next(_ended) % _TESTS_BETWEEN_COLLECTIONS == 0:
        _forget_custom_gradients()
        gc.collect()


def _forget_custom_gradients():
    """Lets go of graphs: TensorFlow keeps all in which a `tf.custom_gradient` was, for ever."""
    from tensorflow.python.framework import ops

    known = ops._gradient_registry._registry
    for name in [name for name in known if name.startswith('CustomGradient-')]:
        del known[name]


def _is_in(share, name):
    return share is None or _number_of(name) % share[1] == share[0] - 1


def _number_of(name):
    """Not Python's own hash, which is another one in each process."""
    return zlib.crc32(name.encode())


@pytest.fixture(autouse=True)
def graph():
    """A fresh default graph with a fixed seed."""
    tf1 = _tf1()
    with tf1.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        yield graph


@pytest.fixture
def ctrl_c_is_pythons():
    """Ctrl-C raises KeyboardInterrupt; who starts the tests in the background may ignore it."""
    given = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, given)


@pytest.fixture(autouse=True)
def _no_signals_are_kept():
    """A training that has ended, or whose session nobody has any more, hears of no signals."""
    yield
    # They import TensorFlow, so not where this file begins.
    from slimguard.scripts import instrumentation
    from slimguard.training import signal_watch

    if instrumentation.is_active():  # by a fixture of several tests
        return
    if signal_watch.listeners():
        gc.collect()
    assert signal_watch.listeners() == []


def _switch_control_flow(v2):
    (_tf1().enable_control_flow_v2 if v2 else _tf1().disable_control_flow_v2)()


@pytest.fixture(params=['v1', 'v2'])
def control_flow(request):
    """Once with branches and loops that are ops of the graph, 'v1', and once functions, 'v2'."""
    was_v2 = _tf1().control_flow_v2_enabled()
    _switch_control_flow(request.param == 'v2')
    yield request.param
    _switch_control_flow(was_v2)


@pytest.fixture
def control_flow_v1():
    """Branches and loops are ops of the graph, and not functions."""
    was_v2 = _tf1().control_flow_v2_enabled()
    _switch_control_flow(False)
    yield
    _switch_control_flow(was_v2)


@pytest.fixture(params=['absolute', 'relative'])
def folder(request, tmp_path, monkeypatch):
    """A folder of the test's own: once by its whole path, once from the working directory."""
    if request.param == 'absolute':
        return tmp_path
    monkeypatch.chdir(tmp_path)
    os.mkdir('logs')
    return pathlib.Path('logs')
