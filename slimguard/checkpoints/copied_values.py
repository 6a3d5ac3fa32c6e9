"""Copies of all that a save writes, made at one moment and kept while they are written.

They lie in a staging area of TensorFlow's, where what writes them runs. A variable by reference is
copied there. The value of a resource variable is held on to, and the next step that writes the
variable makes a new one: that is a copy as well, at another time. So there is one more copy of
what is saved, at most, until it is written. Small ones of one shape are kept as one: a network has
hundreds of these, and with each op every run of another kind takes longer to be made.
"""

import contextlib
import numbers
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.checkpoints.step_turn import turn_of
from slimguard.graph import ops, single_runs

_READS = frozenset(['Identity', 'ReadVariableOp'])


class CopiedValues:
    """Adds the ops that make the copies of what is saved, and those that give them.

    Args:
      saves: the ops that save.
      values_of: gives what such an op saves.

    Attributes:
      values: what gives the copy of each value, by its `key`.
    """

    def __init__(self, saves: Sequence[tf.Operation], values_of) -> None:
        self.values: Dict[Any, tf.Tensor] = {}
        self._made: Dict[tf.Operation, tf.Tensor] = {}  # by variable, the copy of what is alone
        self._stages: List[tf.Operation] = []
        self._clears: List[tf.Operation] = []
        for save in saves:
            self._add(save, values_of(save))

    def _add(self, save: tf.Operation, values: Sequence[tf.Tensor]) -> None:
        make = ops.Maker(save.graph)
        groups = make.alike(values, ops.SMALL_BYTES)
        copies = [self._copy(make, [values[number] for number in group]) for group in groups]
        dtypes = [copy.dtype for copy in copies]
        area: Dict[str, Any] = {'shared_name': 'slimguard_copies_of_' + save.name}
        with save.graph.colocate_with(save):
            clear = tf.raw_ops.StageClear(dtypes=dtypes, **area)
            with tf.control_dependencies([clear]):  # of a save that was broken off
                stage = tf.raw_ops.Stage(values=copies, **area)
            given = tf.raw_ops.StagePeek(index=0, dtypes=dtypes, **area)
        self._clears.append(clear)
        self._stages.append(stage)
        for group, joined in zip(groups, given):
            parts = make.split(joined, len(group), joined.op) if len(group) > 1 else [joined]
            for number, part in zip(group, parts):
                part.set_shape(values[number].shape)
                self.values[graphs.key(values[number])] = part

    def _copy(self, make: ops.Maker, values: Sequence[tf.Tensor]) -> tf.Tensor:
        if len(values) == 1:
            return self._copy_alone(values[0])
        near = values[0].op
        return make.join(values, make.constant(0, near), near)

    def _copy_alone(self, value: tf.Tensor) -> tf.Tensor:
        source = _read(value)
        is_reference = graphs.is_reference(source)
        # An Identity of a reference on the same device is that memory itself.
        made = tf.raw_ops.DeepCopy(x=value) if is_reference else tf.identity(value)
        variable = graphs.variable_behind(source)
        if variable is not None:
            self._made.setdefault(variable, made)
        return made

    def make(self, session, global_step: Any) -> Any:
        """Makes the copies. Returns the global step in them, or where there is none, beside them.

        Args:
          session: the session.
          global_step: as for `Saver.save`.
        """
        if global_step is None or isinstance(global_step, numbers.Integral):
            single_runs.run_once(session, self._stages)
            return global_step  # as given
        tensor = session.graph.as_graph_element(global_step, allow_operation=False)
        variable = graphs.variable_behind(_read(tensor))
        step = tensor if variable is None else self._made.get(variable, tensor)
        return int(single_runs.run_once(session, [step, self._stages])[0])

    def drop(self, session) -> None:
        """Releases the copies."""
        try:
            single_runs.run_once(session, self._clears)
        except (tf.errors.OpError, RuntimeError):  # the session is closed or lost, and they with it
            pass


def _read(tensor: tf.Tensor) -> tf.Tensor:
    """What a tensor is read from, if it is the value of a variable; else itself."""
    while tensor.op.type in _READS:
        tensor = tensor.op.inputs[0]
    return tensor


class Moment(NamedTuple):
    """What is to be saved.

    Attributes:
      copies: the copies to write; None for the variables as they are.
      global_step: the number in the name of the checkpoint, or where to read it.
    """

    copies: Optional[CopiedValues]
    global_step: Any


@contextlib.contextmanager
def one_moment(lock, session, global_step: Any, checked) -> Iterator[Moment]:
    """While it is open, `lock` is held, and there is the state of one moment to save.

    Args:
      lock: held by whoever saves.
      session: the session to save.
      global_step: as for `Saver.save`.
      checked: the `CheckedSave`, for its copies.
    """
    turn = turn_of(session.graph)
    if turn is None or turn.is_mine:  # nobody else trains meanwhile
        with lock:
            yield Moment(None, global_step)
        return
    with lock:
        copies = checked.prepare_copies()
    with turn.between_steps(lock):
        was_in_step = turn.is_in_step
        step = copies.make(session, global_step)
        if was_in_step and not turn.is_in_step:  # it has ended after all, and no other begins
            step = copies.make(session, global_step)
    try:
        yield Moment(copies, step)
    finally:
        copies.drop(session)
        lock.release()
