"""The text of a graph, as it is in graph.pbtxt, in a fraction of the time.

TensorFlow has it written by protobuf's printer in Python, field by field: that takes two seconds of
every start of a detector of 14,000 ops. Most attributes of its ops are the same few types, shapes
and flags. So each attribute is printed once, by that same printer, and its text is kept.
"""

import functools
import re
from typing import Any, Callable, Dict, List, Tuple

import tensorflow.compat.v1 as tf1
from google.protobuf import text_format

# What a text has as it is: no quotes, no backslash, nothing beyond ASCII.
_PLAIN = re.compile(r'[A-Za-z0-9_./^:>-]*')
# A node that has no name, or other fields than these, is left to protobuf's printer.
_FIELDS = frozenset(['name', 'op', 'input', 'device', 'attr'])
_USUAL = frozenset(['name', 'op'])
# What changes how a field looks, and nothing else.
_OPTIONS = frozenset(['as_utf8', 'double_format', 'float_format', 'indent'])
# Longer attributes are constants, which do not come again.
_LONGEST_KEPT = 1000


class TextFormat:
    """Stands in for the module `google.protobuf.text_format` where TensorFlow writes graphs."""

    @staticmethod
    def MessageToString(message: Any, **options: Any) -> str:
        """The text that protobuf's function of this name gives for a message, to the letter."""
        if isinstance(message, tf1.GraphDef) and _are_alike(**options):
            return _fast_text(message, **options)
        return text_format.MessageToString(message, **options)


def _fast_text(graph_def: Any, **options: Any) -> str:
    to_string = functools.partial(text_format.MessageToString, **options)
    print_node = _NodePrinter(to_string)
    parts = [print_node(node) for node in graph_def.node]  # the first field of a graph
    rest = tf1.GraphDef()
    for field, value in graph_def.ListFields():
        if field.name != 'node':
            _set(rest, field.name, value)
    return ''.join([*parts, to_string(rest)])


class _NodePrinter:
    """Prints a node as it is in the text of a graph.

    Args:
      to_string: protobuf's printer.
    """

    def __init__(self, to_string: Callable[[Any], str]):
        self._to_string = to_string
        self._attrs: Dict[Tuple[str, bytes], str] = {}
        self._begin, line, self._end = self._lines(tf1.NodeDef(op='x'))
        name, op, self._input, self._device = [
            line.replace('op: "x"', field + ': "%s"') for field in ('name', 'op', 'input', 'device')
        ]
        self._names = name + op

    def __call__(self, node: Any) -> str:
        names = [node.name, node.op, *node.input, node.device]
        fields = {field.name for field, _ in node.ListFields()}
        if not (_USUAL <= fields <= _FIELDS and _PLAIN.fullmatch(''.join(names))):
            return ''.join(self._lines(node))
        parts = [self._begin, self._names % (node.name, node.op)]
        parts += [self._input % name for name in node.input]
        if node.device:
            parts.append(self._device % node.device)
        parts += [self._attr(key, node.attr[key]) for key in sorted(node.attr)]
        return ''.join([*parts, self._end])

    def _attr(self, key: str, value: Any) -> str:
        known = (key, value.SerializeToString())
        if known in self._attrs:
            return self._attrs[known]
        node = tf1.NodeDef()
        node.attr[key].CopyFrom(value)
        text = ''.join(self._lines(node)[1:-1])
        if len(known[1]) < _LONGEST_KEPT:
            self._attrs[known] = text
        return text

    def _lines(self, node: Any) -> List[str]:
        return self._to_string(tf1.GraphDef(node=[node])).splitlines(keepends=True)


def _set(message: Any, name: str, value: Any) -> None:
    if hasattr(value, 'CopyFrom'):
        getattr(message, name).CopyFrom(value)
    else:
        setattr(message, name, value)


@functools.lru_cache(maxsize=None)
def _are_alike(**options: Any) -> bool:
    """Whether a graph with all that a text may have gets the same from both."""
    if not options.keys() <= _OPTIONS:
        return False
    graph = _sample()
    return _fast_text(graph, **options) == text_format.MessageToString(graph, **options)


def _sample() -> Any:
    graph = tf1.GraphDef()
    node = graph.node.add(name='a/b', op='Sum', input=['^x', 'y:1'], device='/job:a/task:0')
    _add_attributes(node, bytes(range(256)) + '\u4e2d'.encode())
    graph.node.add(name='a/\'b\' "c" \\d', op='\u00e9\u4e2d\t\n').attr['flag'].b = True
    graph.node.add(op='NoOp')
    function = graph.library.function.add()
    function.signature.name = 'g'
    function.signature.input_arg.add(name='x', type=1)
    function.node_def.add(name='n').attr['float'].f = 0.7
    function.ret['y'] = 'n:z:0'
    function.ret['b'] = ''
    graph.versions.producer = 24
    return graph


def _add_attributes(node: Any, any_bytes: bytes) -> None:
    """Adds one of each kind."""
    node.attr['shape'].shape.dim.add(size=-1)
    node.attr['shape_unknown'].shape.unknown_rank = True
    node.attr['text'].s = any_bytes
    node.attr['texts'].list.s.extend([any_bytes, b'', b'x: 0.1\n f: 0.1\nkey: 0\n'])
    node.attr['float'].f = 0.1
    node.attr['floats'].list.f.extend([1e-10, 1e20, 16777216, float('inf'), float('nan'), -0.0])
    node.attr['type'].type = 9
    node.attr['types'].list.type.extend([1, 2, 101])
    node.attr['Function'].func.name = 'g'
    node.attr['Function'].func.attr['flag'].b = False
    node.attr['int'].i = -(2**62)
    node.attr['zero'].i = 0
    node.attr['nothing'].SetInParent()
    tensor = node.attr['tensor'].tensor
    tensor.float_val.extend([0.3, 1, 1 / 3, 3.4e38, 1e-45, float('-inf')])
    tensor.double_val.extend([0.1, 1 / 3, 1e300, 5e-324, 2])
    tensor.half_val.extend([15360, 0])
    tensor.tensor_content = any_bytes
