"""The text of a graph is the same, to the letter, whoever prints it."""

import os

import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

import slimguard
from slimguard.compat import tf_private
from slimguard.graph import graph_text
from tests.helpers import message_text


@pytest.fixture(autouse=True)
def printed_in_python(monkeypatch):
    """As it is for users: protobuf's own function prints, not that of the tests."""
    monkeypatch.setattr(text_format, 'MessageToString', message_text.in_python)
    graph_text._are_alike.cache_clear()
    yield
    graph_text._are_alike.cache_clear()


def trained():
    """A graph with floats, functions and a gate; its train op."""
    x = tf.placeholder(tf.float32, [None, 3], name='x')
    weights = tf.get_variable('w', [3], initializer=tf.constant_initializer([0.1, 1 / 3, -1e-7]))
    doubled = tf.data.Dataset.range(3).map(lambda i: tf.cast(i, tf.float64) * 0.7)
    step = tf.data.make_one_shot_iterator(doubled).get_next()
    loss = tf.reduce_sum(x * weights) * tf.cast(step, tf.float32)
    return slimguard.guard(tf.train.MomentumOptimizer(0.015, 0.9).minimize(loss))


@pytest.mark.parametrize('options', [{}, {'as_utf8': True}, {'indent': 3}], ids=str)
def test_a_graph_has_the_text_that_protobuf_prints(options):
    trained()
    graph_def = tf.get_default_graph().as_graph_def(add_shapes=True)
    assert graph_def.library.function and 'float_val' in str(graph_def)
    expected = text_format.MessageToString(graph_def, **options)
    assert graph_text.TextFormat.MessageToString(graph_def, **options) == expected


def test_the_fast_printer_is_taken_where_it_prints_the_same():
    assert graph_text._are_alike() and graph_text._are_alike(as_utf8=True)
    assert not graph_text._are_alike(as_one_line=True)


@pytest.mark.parametrize('size', [1, 10, 5000])
def test_each_kind_of_node_has_the_text_that_protobuf_prints(size):
    graph_def = tf.GraphDef()
    numbers = tf.make_tensor_proto([[k / 7, k * 1e30] for k in range(size)])
    numbers.double_val.extend([0.1, -0.0, 1e-300] * size)
    for k in range(3):  # what comes again is printed from memory
        node = graph_def.node.add(name='plain%d' % k, op='Const', device='/device:GPU:0')
        node.input.extend(['a', 'b:1', '^c-d>e'])
        node.attr['value'].tensor.CopyFrom(numbers)
        node.attr['Zeta'].list.s.extend([b'"quoted"', b'\\ \n'])
        node.attr['_alpha'].b = False
    graph_def.node.add(name='quote"d', op='NoOp')
    graph_def.node.add(name='r\u00e9seau', op='NoOp', input=['b\\c'])
    graph_def.node.add(op='NoOp').attr['a'].i = 0
    graph_def.node.add(name='b').experimental_debug_info.original_node_names.append('c')
    graph_def.node.add()
    graph_def.versions.producer = 24
    graph_def.versions.bad_consumers.append(3)
    graph_def.version = 4
    assert graph_text.TextFormat.MessageToString(graph_def) == message_text.in_python(graph_def)


def test_an_empty_graph_has_an_empty_text():
    assert graph_text.TextFormat.MessageToString(tf.GraphDef()) == ''


def test_other_messages_are_printed_by_protobuf():
    message = tf.AttrValue(f=0.1)
    assert graph_text.TextFormat.MessageToString(message) == 'f: 0.1\n'


def written_by_supervisor(logdir):
    """The bytes of the graph.pbtxt that a Supervisor writes."""
    supervisor = tf.train.Supervisor(logdir=logdir, saver=None, summary_op=None)
    with supervisor.managed_session(start_standard_services=False):
        pass
    with open(os.path.join(logdir, 'graph.pbtxt'), 'rb') as file:
        return file.read()


def test_a_supervisor_writes_the_same_file(tmp_path, monkeypatch):
    trained()
    tf.train.get_or_create_global_step()
    tf.train.Supervisor(logdir=None, saver=None, summary_op=None)  # its ops are in both files
    times = []
    fast = graph_text._fast_text

    def counted(message, **options):
        times.append(len(message.node))
        return fast(message, **options)

    monkeypatch.setattr(graph_text, '_fast_text', counted)
    with slimguard.instrument():
        instrumented = written_by_supervisor(str(tmp_path / 'instrumented'))
    written = len(tf.get_default_graph().get_operations())
    assert times.count(written) == 1
    assert tf_private.graph_writer().text_format is text_format
    assert instrumented == written_by_supervisor(str(tmp_path / 'plain'))
    assert b'slimguard' in instrumented
