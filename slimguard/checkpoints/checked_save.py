"""The save op of a `Saver`, created a second time behind a check of every float that is saved.

A resource variable is read once, and the value that is checked is the value that is written. A ref
variable has no value of its own to read: it is checked after it is written, and if it is bad, the
files are removed.

There are two checks. The first is a sum of squares for each value, or for many short ones together:
few ops, which a graph of hundreds of variables hardly notices. Large values may make a sum
non-finite, too. So then the exact check, value by value, is built and serves from then on.

A check that finds a bad value does not fail, since TensorFlow would write lines of its own: instead
the ops that save are on a branch that is not taken.
"""

from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.graph import ops, single_runs

_SAVES = frozenset(['Save', 'SaveSlices', 'SaveV2'])


class CheckedSave:
    """Saves what a Saver saves, behind a check.

    Args:
      graph: the graph of the saver; ops are added to it when a save first needs them.
      saver_def: the `SaverDef` of the saver.

    Attributes:
      size: the bytes of all saved values whose shape is known.
      has_refs: whether ref variables of floats are saved.
    """

    def __init__(self, graph: tf.Graph, saver_def: Any):
        self._graph = graph
        self._save_tensor = graph.as_graph_element(saver_def.save_tensor_name)
        saves = _saves_of(self._save_tensor)
        self.size = sum(_bytes_of(tensor) for op in saves for tensor in _values_of(op))
        self.has_refs = any(graphs.is_reference(value.tensor) for value in _saved_floats(saves))
        self._clone: Optional[_SaveClone] = None
        self._is_exact = False

    def prepare(self) -> None:
        """Adds the ops that check and save, unless they are there."""
        if self._clone is None:
            self._build('save', _check_sums)

    def variables_by_name(self) -> Dict[str, Optional[tf.Operation]]:
        """The ops of the variables whose floats are saved, by their names in the checkpoint.

        None stands for a computed value that is no variable's.
        """
        saved = _saved_floats(_saves_of(self._save_tensor))
        return {value.name: graphs.variable_read(value.tensor) for value in saved}

    def run(self, session, feed_dict: Dict[Any, Any], replaces: bool) -> 'Outcome':
        """Checks and saves.

        Args:
          session: the session.
          feed_dict: as a Saver feeds it.
          replaces: whether a checkpoint of that name is there, which a bad one must not replace.

        Returns:
          The outcome. If a ref is not finite, the files may have been written.

        Raises:
          tf.errors.OpError: if it cannot be written.
        """
        self.prepare()
        assert self._clone is not None
        saved = self._clone.run(session, feed_dict, replaces)
        if not saved.is_refused:
            return saved
        if not self._is_exact:
            self._build('save_exactly', _check_values)
            self._is_exact = True
        # With `replaces`, bad values are not written again.
        return self._clone.run(session, feed_dict, replaces=True)

    def _build(self, scope: str, check: '_Checker') -> None:
        single_runs.prepare(self._graph)
        with tf_private.unfinalized(self._graph), ops.our_scope(self._graph, scope):
            self._clone = _SaveClone(self._save_tensor, check)


class Outcome(NamedTuple):
    """The result of a save.

    Attributes:
      path: the prefix of the checkpoint; None if it is refused.
      bad_names: the names of the bad values, if the check can tell.
    """

    path: Optional[bytes]
    bad_names: List[str]

    @property
    def is_refused(self) -> bool:
        return self.path is None


class _SaveClone:
    """The ops that save, created a second time behind a check.

    Args:
      save_tensor: the tensor that a Saver runs.
      check: adds a check of a list of values, which is never empty.
    """

    def __init__(self, save_tensor: tf.Tensor, check: '_Checker'):
        self._check = check
        saved = list(_saved_floats(_saves_of(save_tensor)))
        self._refs = [v for v in saved if graphs.is_reference(v.tensor)]
        others = [v for v in saved if not graphs.is_reference(v.tensor)]
        refusals: List[tf.Tensor] = []
        controls: List[tf.Operation] = []
        if others:
            is_good, refused = _branches(check(others), 'values')
            refusals.append(refused)
            controls.append(is_good.op)
        clones = _clone_saves(save_tensor, controls)
        path = tf.identity(clones[save_tensor.op].outputs[save_tensor.value_index], name='written')
        if self._refs:
            with tf.control_dependencies([path]):
                is_good, refused = _branches(check(self._refs), 'refs')
            refusals.append(refused)
            with tf.control_dependencies([is_good]):
                path = tf.identity(path, name='path')
        # The path, or the names of bad values; and which of these it is.
        self._ends = list(tf.raw_ops.Merge(inputs=[path, *refusals], name='end'))
        self._ahead: Optional[List[tf.Tensor]] = None

    def run(self, session, feed_dict: Dict[Any, Any], replaces: bool) -> Outcome:
        """Checks and saves. If it `replaces`, refs are checked ahead, and not only afterwards."""
        if replaces and self._refs:
            is_good, bad_names = single_runs.run_once(session, self._checks_ahead())
            if not is_good:
                return _refusal(bad_names)
        end, which = single_runs.run_once(session, self._ends, feed_dict)
        return _refusal(end) if which else Outcome(end, [])

    def _checks_ahead(self) -> List[tf.Tensor]:
        """A check that writes nothing; its ops are added when one is needed for the first time."""
        if self._ahead is None:
            graph = self._ends[0].graph
            with tf_private.unfinalized(graph), ops.our_scope(graph, 'save_ahead'):
                self._ahead = list(self._check(self._refs))
        return self._ahead


def _branches(check: '_Check', name: str) -> Tuple[tf.Tensor, tf.Tensor]:
    """A tensor that is alive if a check finds all good, and the bad names, alive if it does not."""
    if_good, if_bad = ops.branch(check.is_good, check.is_good, name)
    with tf.control_dependencies([if_bad]):
        return if_good, tf.identity(check.bad_names, name=name + '_bad')


def _refusal(bad_names: Any) -> Outcome:
    return Outcome(None, [tf.compat.as_str_any(name) for name in bad_names])


def _saves_of(save_tensor: tf.Tensor) -> List[tf.Operation]:
    return [op for op in graphs.ancestors([save_tensor.op]) if op.type in _SAVES]


def _clone_saves(
    save_tensor: tf.Tensor, controls: Sequence[tf.Operation]
) -> Dict[tf.Operation, tf.Operation]:
    """Clones the ops that save, behind `controls`, and ops that need these; keyed by original."""
    clones: Dict[tf.Operation, tf.Operation] = {}
    for op in graphs.ancestors([save_tensor.op]):
        is_save = op.type in _SAVES
        if not is_save and not any(needed in clones for needed in graphs.needs(op)):
            continue
        inputs = [clones[t.op].outputs[t.value_index] if t.op in clones else t for t in op.inputs]
        waits = [clones[c] if c in clones else c for c in op.control_inputs]
        clones[op] = ops.create_like(op, inputs, waits + list(controls if is_save else ()))
    return clones


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
    """The tensors that an op saves."""
    # They follow the filename, the names and, except in the oldest op, the slices.
    return list(op.inputs)[2 if op.type == 'Save' else 3 :]


def _bytes_of(tensor: tf.Tensor) -> int:
    is_known = tensor.shape.is_fully_defined()
    return tensor.shape.num_elements() * tensor.dtype.base_dtype.size if is_known else 0


def _source(tensor):
    """The tensor that a value comes from unchanged: it is checked there, on its own device."""
    while tensor.op.type == 'Identity':
        tensor = tensor.op.inputs[0]
    return tensor


class _Check(NamedTuple):
    """The result of a check of values.

    Attributes:
      is_good: a bool scalar: whether all are finite.
      bad_names: a string vector; empty if they are good, or if it is not known which are bad.
    """

    is_good: tf.Tensor
    bad_names: tf.Tensor


_Checker = Callable[[Sequence[_Saved]], _Check]


def _check_sums(saved: Sequence[_Saved]) -> _Check:
    """Whether all sums of squares are finite: then all values are."""
    tensors = []
    for tensor in {graphs.key(value.tensor): value.tensor for value in saved}.values():
        with tensor.op.graph.colocate_with(tensor.op):
            tensors.append(ops.for_arithmetic(tensor))
    sums: Dict[tf.DType, List[tf.Tensor]] = {}
    for group in ops.short_together(tensors):
        joined = [tensors[number] for number in group]
        with ops.at(joined[0].op):
            x = joined[0] if len(joined) == 1 else tf.concat(joined, 0)
            sums.setdefault(x.dtype.base_dtype, []).append(tf.nn.l2_loss(x))
    finite = [tf.reduce_all(tf.math.is_finite(tf.stack(same))) for same in sums.values()]
    is_good = finite[0] if len(finite) == 1 else tf.reduce_all(tf.stack(finite))
    return _Check(is_good, tf.constant([], tf.string))


def _check_values(saved: Sequence[_Saved]) -> _Check:
    """Whether all values are finite, and which are not."""
    bad = tf.stack([_is_bad(value.tensor) for value in saved])
    names = tf.constant([value.name for value in saved], tf.string)
    return _Check(ops.none_of(bad), tf.gather(names, tf.squeeze(tf.where(bad), [1])))


def _is_bad(tensor: tf.Tensor) -> tf.Tensor:
    with tensor.op.graph.colocate_with(tensor.op):
        finite = tf.math.is_finite(ops.for_arithmetic(tensor))
        return tf.logical_not(tf.reduce_all(finite))
