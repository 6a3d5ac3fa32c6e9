"""The text of a message means the same, whoever has made it."""

import tensorflow as tf
from google.protobuf import text_format

from slimguard import gate
from tests.helpers import message_text
from tests.helpers.gate_models import Damage, two_weights

tf1 = tf.compat.v1


def test_the_text_made_in_c_is_read_as_that_madein_python(graph):
    gate.guard(*two_weights(Damage(), lambda: tf1.train.AdamOptimizer(0.1)))
    tf.constant([b'\xff\0"\'\n', '\u00e9\u4e00'.encode()])
    tf.constant([1 / 3, 1e-45, -0.0, float('inf'), float('nan')], tf.float32)
    tf.constant([1 / 3, 1e300], tf.float64)
    message = graph.as_graph_def(add_shapes=True)
    texts = [text_format.MessageToString(message), message_text.in_python(message)]
    first, second = (text_format.Parse(text, tf1.GraphDef()) for text in texts)
    as_bytes = [each.SerializeToString(deterministic=True) for each in (first, second, message)]
    assert len(set(as_bytes)) == 1
    in_c = text_format.MessageToString is message_text._to_string
    assert in_c == message_text.is_right_in_c()


def test_what_is_asked_for_besides_is_done(graph):
    tf.constant(1.0)
    message = graph.as_graph_def()
    text = text_format.MessageToString(message, as_one_line=True)
    assert '\n' not in text and text_format.Parse(text, tf1.GraphDef()) == message
