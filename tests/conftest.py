"""What every test needs: a quiet TensorFlow in graph mode, and a graph of its own."""

import os
import pathlib

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import pytest
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.logging.set_verbosity(tf1.logging.ERROR)


@pytest.fixture(autouse=True)
def graph():
    """A fresh default graph with a fixed seed."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        yield graph


def _switch_control_flow(v2):
    (tf1.enable_control_flow_v2 if v2 else tf1.disable_control_flow_v2)()


@pytest.fixture(params=['v1', 'v2'])
def control_flow(request):
    """Once with branches and loops that are ops of the graph, 'v1', and once functions, 'v2'."""
    was_v2 = tf1.control_flow_v2_enabled()
    _switch_control_flow(request.param == 'v2')
    yield request.param
    _switch_control_flow(was_v2)


@pytest.fixture
def control_flow_v1():
    """Branches and loops are ops of the graph, and not functions."""
    was_v2 = tf1.control_flow_v2_enabled()
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
