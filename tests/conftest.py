"""What every test needs: a quiet TensorFlow in graph mode, and a graph of its own."""

import os

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


@pytest.fixture
def control_flow_v1():
    """Branches and loops are ops of the graph, and not functions."""
    was_v2 = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    yield
    if was_v2:
        tf1.enable_control_flow_v2()
