"""The text of a graph, as it is in graph.pbtxt, in a seventh of the time.

TensorFlow has it written by a printer in Python, which takes two seconds of every start of a
detector of 14,000 ops. The printer in C++ that protobuf 3 has differs in two things: how floats
look, and what is zero in a map. That of protobuf 4 and later, 'upb', keeps no order in maps, so
that nothing is gained there.
"""

import functools
import re
from typing import Any, Dict, Match, Type

import tensorflow.compat.v1 as tf1
from google.protobuf import text_format
from google.protobuf.internal import api_implementation

_TensorProto: Type = type(tf1.make_tensor_proto(0))
# The fields of a GraphDef that hold floats, each with a message that has it.
_FLOATS: Dict[str, Type] = {
    'f': tf1.AttrValue,
    'float_val': _TensorProto,
    'double_val': _TensorProto,
    'scomplex_val': _TensorProto,
    'dcomplex_val': _TensorProto,
}
# Where the two printers differ. No line is part of a string: breaks in it are escaped.
_FLOAT = re.compile(r'(\n *)((%s): \S+)' % '|'.join(_FLOATS))
_ZERO_IN_A_MAP = re.compile(r'\n *(?:key|value): (?:0|"")(?=\n)')


class TextFormat:
    """Stands in for the module `google.protobuf.text_format` where TensorFlow writes graphs."""

    @staticmethod
    def MessageToString(message: Any, **options: Any) -> str:
        """The text that protobuf's function of this name gives for a message, to the letter."""
        if isinstance(message, tf1.GraphDef) and _are_alike(**options):
            return _fast_text(message, **options)
        return text_format.MessageToString(message, **options)


def _fast_text(message: Any, **options: Any) -> str:
    known: Dict[str, str] = {}

    def as_python_prints(found: Match) -> str:
        indent, line, field = found.groups()
        if line not in known:
            holder = text_format.Parse(line, _FLOATS[field]())
            known[line] = text_format.MessageToString(holder, **options).rstrip('\n')
        return indent + known[line]

    return _FLOAT.sub(as_python_prints, _ZERO_IN_A_MAP.sub('', str(message)))


@functools.lru_cache(maxsize=None)
def _are_alike(**options: Any) -> bool:
    """Whether this protobuf's printers agree about a graph with all that they may differ in."""
    if api_implementation.Type() != 'cpp':
        return False
    graph = _sample()
    return _fast_text(graph, **options) == text_format.MessageToString(graph, **options)


def _sample() -> Any:
    graph = tf1.GraphDef()
    node = graph.node.add(name='a/\'b\' "c" \\d', op='é\u4e2d\t\n', input=['^x', 'y:1'])
    node.attr['shape'].shape.dim.add(size=-1)
    node.attr['shape_unknown'].shape.unknown_rank = True
    any_bytes = bytes(range(256)) + '\u4e2d'.encode()
    node.attr['text'].s = any_bytes
    node.attr['texts'].list.s.extend([any_bytes, b'', b'x: 0.1\n f: 0.1\nkey: 0\n'])
    node.attr['float'].f = 0.1
    node.attr['floats'].list.f.extend([1e-10, 1e20, 16777216, float('inf'), float('nan'), -0.0])
    node.attr['type'].type = 9
    node.attr['types'].list.type.extend([1, 2, 101])
    node.attr['function'].func.name = 'g'
    node.attr['function'].func.attr['flag'].b = False
    node.attr['int'].i = -(2**62)
    node.attr['zero'].i = 0
    tensor = node.attr['tensor'].tensor
    tensor.float_val.extend([0.3, 1, 1 / 3, 3.4e38, 1e-45, float('-inf')])
    tensor.double_val.extend([0.1, 1 / 3, 1e300, 5e-324, 2])
    tensor.scomplex_val.extend([0.1, 1])
    tensor.dcomplex_val.extend([0.1, 1e-7])
    tensor.half_val.extend([15360, 0])
    tensor.tensor_content = any_bytes
    function = graph.library.function.add()
    function.signature.name = 'g'
    function.signature.input_arg.add(name='x', type=1)
    function.node_def.add(name='n').attr['float'].f = 0.7
    function.ret['y'] = 'n:z:0'
    function.ret['b'] = ''
    if hasattr(function, 'arg_attr'):
        function.arg_attr[1].attr['a'].i = 0
        function.arg_attr[0].attr['b'].b = True
    if hasattr(function, 'resource_arg_unique_id'):
        function.resource_arg_unique_id[0] = 0
        function.resource_arg_unique_id[1] = 2
    graph.versions.producer = 24
    return graph
