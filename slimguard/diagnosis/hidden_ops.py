"""Names the ops inside a loop or a function, where nothing can be fetched, that may be at fault."""

from typing import List, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis import causes
from slimguard.diagnosis.rerun import Step

_MOST_NAMED = 5


def explain_inside(step: Step, op) -> str:
    """The sentence about an op that ends a loop or calls a function; '' if it does neither.

    It names only the inner ops that work on floats and can make NaN or Inf.
    """
    op = _filled_by(op)
    loop = step.flow.loop_left_by(op)
    writes = graphs.Writes(step.graph)
    bodies = writes.calls(op)
    if not loop and not bodies:
        return ''
    where = 'the loop %s' % loop if loop else 'a function of %s' % step.type_of(op)
    found = _risky_in_loop(step, loop) if loop else _risky_in_functions(writes, bodies)
    may = '; what may do it there: ' + ', '.join(found[:_MOST_NAMED]) if found else ''
    return 'somewhere in %s, which cannot be looked into%s' % (where, may)


def _filled_by(op: tf.Operation) -> tf.Operation:
    """The op that filled the array or list which an op reads; the op itself if it reads none."""
    if not op.type.startswith(('TensorArray', 'TensorList')) or not op.inputs:
        return op
    array = op.inputs[0] if op.type.startswith('TensorList') else op.inputs[-1]  # its flow
    while array.op.type == 'Identity':
        array = array.op.inputs[0]
    return array.op


def _risky_in_loop(step: Step, loop: str) -> List[str]:
    found = []
    for op in step.ops:
        if op.type in causes.RISKY and step.flow.is_in_loop(op, loop):
            if not any(map(graphs.is_float, op.outputs)):
                continue
            origin = step.origins(op.name)
            line = ' at %s:%d' % origin.line[:2] if origin.line is not None else ''
            found.append('%s %s%s' % (op.type, op.name, line))
    return found


def _risky_in_functions(writes: graphs.Writes, bodies: Sequence[str]) -> List[str]:
    found = []
    seen = set()
    waiting = list(bodies)
    while waiting:
        name = waiting.pop()
        function = writes.function(name)
        if name in seen or function is None:
            continue
        seen.add(name)
        for node in function.node_def:
            if node.op in causes.RISKY and _is_of_floats(node):
                found.append('%s %s' % (node.op, node.name))
            waiting.extend(writes.called_by(node))
    return found


def _is_of_floats(node) -> bool:
    if 'T' not in node.attr or not node.attr['T'].type:
        return True
    dtype = tf.as_dtype(node.attr['T'].type)
    return dtype.is_floating or dtype.is_complex
