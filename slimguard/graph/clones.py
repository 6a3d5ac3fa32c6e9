"""Which clone of a model a value comes from, if one graph trains several.

Clones (towers) are the same model on parts of a batch, each under a scope of its own: ``clone_0``,
``clone_1``. The optimizer applies the sum of their gradients, or the mean. A check of the sum
tells whether all are finite, but not which clone was at fault: :func:`summands_by_clone` finds the
gradients that were summed.
"""

import re
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf

from slimguard.graph.walk import is_float

# Sums, and the ops that join several tensors for a mean.
_SUMS = frozenset('AddN AccumulateNV2 Add AddV2 ConcatV2 Pack'.split())
# Ops that may stand between a sum and the kernel that applies it.
_ON_THE_WAY = frozenset(
    'Identity CheckNumerics CheckNumericsV2 Cast Mul RealDiv Mean Sum Reshape ExpandDims '
    'UnsortedSegmentSum'.split()
)
_MOST_ON_THE_WAY = 12
_GRADIENTS = re.compile(r'gradients(_\d+)?$')
_NUMBER = re.compile(r'(_?\d+)+$')


def summands_by_clone(
    values: Sequence[tf.Tensor], resolve: Callable[[tf.Tensor], tf.Tensor]
) -> Dict[str, List[tf.Tensor]]:
    """The summands of `values`, by the name of the clone that made them; empty without clones.

    Args:
      values: float tensors.
      resolve: maps a tensor to the one that it stands for.
    """
    found: Dict[str, List[tf.Tensor]] = {}
    for value in values:
        for name, summand in _summands(value, resolve):
            found.setdefault(name, []).append(summand)
    return found


def _summands(value: tf.Tensor, resolve) -> List[Tuple[str, tf.Tensor]]:
    waiting = [value]
    for _ in range(_MOST_ON_THE_WAY):
        if not waiting:
            break
        tensor = resolve(waiting.pop(0))
        kind = tensor.op.type
        if kind not in _SUMS and kind not in _ON_THE_WAY:
            continue
        inputs = [t for t in tensor.op.inputs if is_float(t)]
        if kind in _SUMS and len(inputs) > 1:
            names = _clones_of([_origin(t, resolve).op.name for t in inputs])
            if names is not None:
                return list(zip(names, inputs))
        waiting.extend(inputs)
    return []


def _origin(tensor: tf.Tensor, resolve) -> tf.Tensor:
    """The tensor behind a summand, which may be scaled or reshaped outside of its clone's scope."""
    for _ in range(_MOST_ON_THE_WAY):
        tensor = resolve(tensor)
        if tensor.op.type not in _ON_THE_WAY:
            break
        inputs = [t for t in tensor.op.inputs if is_float(t)]
        if tensor.shape.rank != 0:
            inputs = [t for t in inputs if t.shape.rank != 0]
        if len(inputs) != 1:
            break
        tensor = inputs[0]
    return tensor


def _clones_of(names: Sequence[str]) -> Optional[List[str]]:
    """The scopes of the clones, told from the names of one op in each; None if there are none.

    For ``clone_0/gradients/AddN`` and ``clone_1/gradients/AddN``, these are ``clone_0`` and
    ``clone_1``. Layers that share a weight are no clones: ``gradients/fc`` and ``gradients/fc_1``.
    """
    paths = [name.split('/') for name in names]
    for parts in zip(*paths):
        if len(set(parts)) > 1:
            break
        if _GRADIENTS.match(parts[0]):
            return None
    else:
        return None
    # If `tf.gradients` was called outside of a clone's scope, its own scope comes first.
    scopes = [[part for part in path[:-1] if not _GRADIENTS.match(part)] for path in paths]
    for parts in zip(*scopes):
        if len(set(parts)) > 1:
            words = {_NUMBER.sub('', part) for part in parts}
            return list(parts) if len(set(parts)) == len(parts) and len(words) == 1 else None
    return None
