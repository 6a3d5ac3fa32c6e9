"""The save op of a `Saver`, created a second time behind a check of every float that is saved.

A resource variable is read once, and the value that is checked is the value that is written. A ref
variable has no value of its own to read: it is checked after it is written, and if it is bad, the
files are removed.
"""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.graph import ops

_SAVES = frozenset(['Save', 'SaveSlices', 'SaveV2'])
# Says in an error that we raised it; the names follow.
_REFUSED = 'slimguard: not finite, so this checkpoint is not written:'


class CheckedSave:
    """The ops that save, created a second time behind a check.

    Args:
      graph: the graph of the saver; it is added to.
      saver_def: the `SaverDef` of the saver.

    Attributes:
      save_tensor: the tensor to run in place of `SaverDef.save_tensor_name`.
      size: the bytes of all that is saved and whose shape is known.
      refs_ahead: a tensor whose evaluation raises if a ref variable of floats is not finite; None
        where none is saved.
    """

    def __init__(self, graph: tf.Graph, saver_def: Any):
        save_tensor = graph.as_graph_element(saver_def.save_tensor_name)
        order = graphs.ancestors([save_tensor.op])
        saves = [op for op in order if op.type in _SAVES]
        self.size = sum(_bytes_of(tensor) for op in saves for tensor in _values_of(op))
        saved = list(_saved_floats(saves))
        refs = [value for value in saved if graphs.is_reference(value.tensor)]
        others = [value for value in saved if not graphs.is_reference(value.tensor)]
        self.refs_ahead = _assert_finite(refs, 'refs_ahead')
        checked = _assert_finite(others, 'values')
        clones = _clone_saves(order, saves, [] if checked is None else [checked.op])
        written = clones[save_tensor.op].outputs[save_tensor.value_index]
        with tf.control_dependencies([written]):
            checked = _assert_finite(refs, 'refs')
        with tf.control_dependencies([written] if checked is None else [checked]):
            self.save_tensor = tf.identity(written, name='path')

    @property
    def has_refs(self) -> bool:
        """Whether ref variables of floats are saved."""
        return self.refs_ahead is not None


def _clone_saves(
    order: Sequence[tf.Operation],
    saves: Sequence[tf.Operation],
    controls: Sequence[tf.Operation],
) -> Dict[tf.Operation, tf.Operation]:
    """Clones the ops that save, behind `controls`, and what needs them; by the op cloned."""
    clones: Dict[tf.Operation, tf.Operation] = {}
    for op in order:
        if op not in saves and not any(needed in clones for needed in graphs.needs(op)):
            continue
        inputs = [clones[t.op].outputs[t.value_index] if t.op in clones else t for t in op.inputs]
        waits = [clones[c] if c in clones else c for c in op.control_inputs]
        clones[op] = ops.create_like(op, inputs, waits + list(controls if op in saves else ()))
    return clones


def refused_names(message: str) -> List[str]:
    """The names in the message of a refusal; empty for any other message."""
    _, found, rest = message.partition(_REFUSED + '] [')
    return rest.partition(']')[0].split('|') if found else []


class _Saved(NamedTuple):
    """A float tensor that is saved, and its name in the checkpoint."""

    tensor: Any
    name: str


def _saved_floats(saves: Sequence[tf.Operation]) -> Iterator[_Saved]:
    for op in saves:
        names = tf.get_static_value(op.inputs[1])
        for number, tensor in enumerate(_values_of(op)):
            if graphs.is_float(tensor):
                name = tensor.op.name if names is None else tf.compat.as_str_any(names[number])
                yield _Saved(_source(tensor), name)


def _values_of(op: tf.Operation) -> List[tf.Tensor]:
    """What an op saves."""
    # After filename, names, and slices but for the oldest.
    return list(op.inputs)[2 if op.type == 'Save' else 3 :]


def _bytes_of(tensor: tf.Tensor) -> int:
    is_known = tensor.shape.is_fully_defined()
    return tensor.shape.num_elements() * tensor.dtype.base_dtype.size if is_known else 0


def _source(tensor):
    """The tensor that a value comes from unchanged: it is checked there, on its own device."""
    while tensor.op.type == 'Identity':
        tensor = tensor.op.inputs[0]
    return tensor


def _assert_finite(saved: Sequence[_Saved], name: str) -> Optional[tf.Tensor]:
    """A tensor that is there once all are found finite; else its evaluation raises.

    The fast path is one sum of squares for each, which takes no memory. Only if a sum is not finite
    are the values checked one by one: large ones overflow a sum.
    """
    if not saved:
        return None
    sizes = []
    for value in saved:
        with value.tensor.op.graph.colocate_with(value.tensor.op):
            size = tf.nn.l2_loss(ops.for_arithmetic(value.tensor))
        sizes.append(tf.cast(size, tf.float32))
    is_fast = tf.reduce_all(tf.math.is_finite(tf.stack(sizes)), name=name + '_is_calm')
    fast, exact = ops.branch(is_fast, is_fast, name + '_calm')
    with tf.control_dependencies([exact]):
        bad = tf.stack([_is_bad(value.tensor) for value in saved])
        names = tf.boolean_mask(tf.constant([value.name for value in saved]), bad)
        told = tf.raw_ops.Assert(
            condition=tf.logical_not(tf.reduce_any(bad)),
            data=[tf.constant(_REFUSED), tf.strings.reduce_join(names, separator='|')],
            summarize=1,
        )
    with tf.control_dependencies([told]):
        checked = tf.identity(exact)
    return ops.merge([fast, checked], name + '_checked')


def _is_bad(tensor: tf.Tensor) -> tf.Tensor:
    with tensor.op.graph.colocate_with(tensor.op):
        finite = tf.math.is_finite(ops.for_arithmetic(tensor))
        return tf.logical_not(tf.reduce_all(finite))
