"""States of a training, to go back to between two checkpoints: :class:`Snapshots`.

This module also decides which of them is trusted. A state may be finite and ruined already: the
update that ruins the weights comes some steps before the first NaN. So a state is kept only if its
loss is not far above earlier losses, and it is on probation until enough good steps have followed
it.
"""

import collections
import statistics
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.checkpoints.variables import all_variables, assign, read_variables, size_of
from slimguard.system import memory
from slimguard.system.log import log

# A state is trusted after this many good steps; the gap to the next state is at least as long.
PROBATION = 10
# The gap to the next state is an eighth of the steps so far, and at most so many steps.
_SHARE, _MOST_STEPS = 8, 200
# Reading this many bytes takes a step's time at most. For states N times as large the gap is N
# times as long, but no longer than the number of steps so far.
_BYTES = 32 << 20
# A state is ruined, and not kept, if its loss is so many times that of all older states and of the
# first steps. A loss that rises for another reason does not rise so far.
_RUINED = 10.0
# The weights are ruined now if the last losses are so many times the usual one. The factor is above
# ten because slimguard skips no bad step then, and the losses of two networks that compete may rise
# tenfold.
_RUINED_NOW = 100.0
# The first ten steps exploded if their median loss is so many times the first loss, or so many
# times 1 if that is larger.
_EXPLODED = 1000.0
# The loss of a state, and that of the first steps, is the median over so many good steps. With few
# images in a batch any single loss may be small.
_LOSSES = 10
# The loss now is the median of so many good steps. After so many spikes in a row the weights are to
# blame, not the batches.
_FEW = 3
_OF_FEW = 'the median of the last %d good steps' % _FEW


class Snapshot(NamedTuple):
    """The global variables between two steps.

    Attributes:
      name: its name in the record of incidents.
      step: the global step, or None if there is none.
      taken_at: how many good steps there had been.
      loss: the absolute loss of the last steps before it, or None if it is unknown.
      values: the values of the variables, by the names of their ops.
    """

    name: str
    step: Optional[int]
    taken_at: int
    loss: Optional[float]
    values: Dict[str, np.ndarray]


class Snapshots:
    """Copies of the variables in memory, spread over the steps so far; chooses the one to restore.

    The newest is on probation. If there is no room for all of them, none is kept.

    Args:
      graph: the graph.
      most: how many are kept.
      has_unlisted: whether they hold variables that no collection of the graph lists.
      is_shared: whether other ranks have to keep and restore the same states. Then no value that
        may differ between ranks, such as a loss or the free memory, decides anything.

    Attributes:
      most: as given; 0 if none is kept any more.
      is_wanted: whether any were asked for; if not, nothing restores them.
      good: how many good steps there were.
    """

    def __init__(
        self, graph: tf.Graph, most: int, has_unlisted: bool = False, is_shared: bool = False
    ):
        self.most = most
        self.is_wanted = most > 0
        self.good = 0
        self._graph = graph
        self._has_unlisted = has_unlisted
        self._is_shared = is_shared
        self._variables: Dict[str, Any] = {}  # by name
        self._size: Optional[int] = None  # the bytes of each
        self._states = KeptBySteps(most)
        self._losses: Deque[float] = collections.deque(maxlen=_LOSSES)
        self._spikes = 0  # since the last good step or rollback
        self._first_loss: Optional[float] = None
        # Counts of good steps: at the last rollback, and at the snapshot that it restored, if any.
        self._went_back_at: Optional[int] = None
        self._went_back_to: Optional[int] = None

    @property
    def kept(self) -> List[Snapshot]:
        """The snapshots, the newest first; only that one may be on probation."""
        return self._states.states

    def step_was_good(self, session, loss: Any) -> None:
        """Notes a step, before the next one begins; takes a snapshot if one is due.

        Args:
          session: the session.
          loss: the loss of the step, or None if it is not known.
        """
        self.good += 1
        self._spikes = 0
        if not self.is_wanted:
            return
        if loss is not None and not self._is_shared:
            self._losses.append(abs(float(loss)))
            if self._first_loss is None and len(self._losses) == _LOSSES:
                self._first_loss = _usual_at_first(self._losses)
        # Soon after a rollback the older snapshots may still be needed.
        if self.most and self._states.is_due(self.good) and not self.is_soon:
            if not self._is_far_above():
                self._take(session)

    def step_was_spike(self) -> None:
        """Notes a step that was refused because it was far out of bounds, though finite."""
        if not self._is_shared:
            self._spikes += 1

    @property
    def is_soon(self) -> bool:
        """Whether the last rollback was so recent that it seems not to have helped."""
        return self._went_back_at is not None and (self.good - self._went_back_at < 2 * PROBATION)

    def trusted(self) -> Optional[Snapshot]:
        """The newest trusted snapshot, or None.

        Soon after a rollback it is older than the snapshot that was restored. After a rollback to a
        checkpoint there is none, since all snapshots are newer.
        """
        before = self._went_back_to or 0 if self.is_soon else self.good
        for each in self.kept:
            if each.taken_at < before and self.good - each.taken_at >= PROBATION:
                return each
        return None

    def restore(self, session, snapshot: Snapshot) -> None:
        """Goes back to a snapshot."""
        values = snapshot.values.items()
        assign(session, ((self._variables[name], value) for name, value in values))
        self.note_return(snapshot)

    def drop(self) -> None:
        """Drops all snapshots, and takes no more."""
        self.most = 0
        self._states.keep_only(lambda snapshot: False)

    def forget_before_restart(self, step: Optional[int]) -> None:
        """Drops the snapshots taken before a restart: up to the last one of a step above `step`."""
        later = [each.taken_at for each in self.kept if _is_later(each, step)]
        if later:
            self._states.keep_only(lambda each: each.taken_at > max(later))

    def note_return(self, snapshot: Optional[Snapshot]) -> None:
        """Notes a rollback to a snapshot or, if None, to a checkpoint.

        Drops all newer snapshots; after a rollback to a checkpoint, all of them.
        """
        to = None if snapshot is None else snapshot.taken_at
        self._states.keep_only(lambda each: to is not None and each.taken_at <= to)
        self._went_back_to, self._went_back_at = to, self.good
        self._losses.clear()
        self._spikes = 0

    @property
    def went_back_to(self) -> Optional[Snapshot]:
        """The snapshot that the last rollback restored, if it is still kept; else None."""
        return next((each for each in self.kept if each.taken_at == self._went_back_to), None)

    def ruin(self, is_last: bool = False) -> str:
        """Why the weights are ruined as they are now, though they may be finite; else ''.

        Args:
          is_last: whether the training ends here. Then the loss of the last good step is enough:
            it may be the only high loss of an explosion that is not Inf.
        """
        if self.is_wanted and self._spikes >= _FEW:
            return _SPIKES % self._spikes
        usual = self._usual_loss()
        few = 1 if is_last else _FEW
        if usual is None or len(self._losses) < few:
            return ''
        now = statistics.median(list(self._losses)[-few:])
        whose = 'that of the last good step' if is_last else _OF_FEW
        return _RUIN % (now, whose, usual) if now > _RUINED_NOW * usual else ''

    def _usual_loss(self) -> Optional[float]:
        """The largest loss of the first steps and of the snapshots; None if no loss is known."""
        losses = [self._first_loss, *(each.loss for each in self.kept)]
        return max((each for each in losses if each is not None), default=None)

    def _is_far_above(self) -> bool:
        """Whether the loss is so far above the usual one that the state is no good."""
        usual = self._usual_loss()
        if usual is None or not self._losses:
            return False
        return statistics.median(self._losses) > _RUINED * usual

    def _take(self, session) -> None:
        # Listed now: hooks may add variables when they begin, and scripts after they have trained.
        self._variables = _variables_of(self._graph, self._has_unlisted)
        if self._size is None:
            self._size = size_of(self._variables)
            free = memory.available()
            if free is not None and 2 * self.most * self._size > free and not self._is_shared:
                self._give_up(_NO_ROOM % (self.most, self._size >> 20, free >> 20))
                return
            log().info(_IN_MEMORY, self.most, 1 + (self._size >> 20))
        values = read_variables(session, self._variables)
        for name, value in values.items():
            if not _can_assign(self._variables[name], value.shape):
                self._give_up(_ODD % name)
                return
        loss = statistics.median(self._losses) if self._losses else None
        step = _step_in(values, self._graph)
        name = _name_of(step, self.good)
        self._states.add(Snapshot(name, step, self.good, loss, values), self._size)

    def _give_up(self, why: str) -> None:
        log().warning(_NONE_KEPT, why)
        self.drop()


def _can_assign(variable: Any, shape: Sequence[int]) -> bool:
    """Whether `assign` can put a value into a variable; its shape may have changed."""
    inputs = getattr(variable.initializer, 'inputs', ())
    return len(inputs) > 1 and inputs[1].shape.is_compatible_with(shape)


class KeptBySteps:
    """States of a training, spread over its steps so far; the older they are, the fewer.

    No clock decides, so a busy machine keeps the same states as an idle one, and a rollback goes to
    the same state on both.

    Args:
      most: how many are kept.

    Attributes:
      states: the newest first. Each has a `taken_at`, the number of good steps until then.
    """

    def __init__(self, most: int):
        self.states: List[Any] = []
        self._most = most
        self._due = 0

    def is_due(self, good: int) -> bool:
        """Whether to keep the state after this many good steps."""
        return good >= self._due

    def add(self, state: Any, size: int = 0) -> None:
        """Keeps the present state, of `size` bytes; another may be dropped for it."""
        self.states.insert(0, state)
        self._due = state.taken_at + steps_to_next(state.taken_at, size)
        if len(self.states) > self._most:
            del self.states[self._one_too_many()]

    def _one_too_many(self) -> int:
        """The number of the state to drop: the ages of its neighbours have the smallest ratio.

        So ages grow as powers do. The start of the training is the neighbour of the oldest. The
        newest two stay: one is on probation, and one is the newest that is trusted.
        """
        taken_at = [each.taken_at for each in self.states] + [0]
        ages = [taken_at[0] - each for each in taken_at]
        older = range(2, len(self.states))
        return min(older, key=lambda n: ages[n + 1] / ages[n - 1], default=1)

    def keep_only(self, is_kept: Callable[[Any], bool]) -> None:
        """After a rollback: drops all states but those that `is_kept`; the next step's is kept."""
        self.states = [each for each in self.states if is_kept(each)]
        self._due = 0


def steps_to_next(good: int, size: int) -> int:
    """How many good steps after a state the next one is kept.

    Args:
      good: how many good steps there had been when it was kept.
      size: its bytes.
    """
    times = max(1.0, size / _BYTES)
    wanted = min(max(good / _SHARE, PROBATION * times), _MOST_STEPS * times)
    return int(max(PROBATION, min(good, wanted)))


def _variables_of(graph: tf.Graph, has_unlisted: bool) -> Dict[str, Any]:
    """The variables that a snapshot holds, by name: all but local ones."""
    if has_unlisted:
        local = graphs.local_in(graph)
        return {name: v for name, v in all_variables(graph).items() if v.op not in local}
    with graph.as_default():
        return {v.op.name: v for v in graphs.on_each_device(tf1.global_variables())}


def _step_in(values: Dict[str, np.ndarray], graph: tf.Graph) -> Optional[int]:
    step = graphs.global_step(graph)
    return int(values[step.op.name]) if step is not None and step.op.name in values else None


def _is_later(snapshot: Snapshot, step: Optional[int]) -> bool:
    return step is not None and snapshot.step is not None and snapshot.step > step


def _name_of(step: Optional[int], good: int) -> str:
    if step is not None:
        return 'a snapshot of global step %d' % step
    return 'a snapshot after %d good step%s' % (good, '' if good == 1 else 's')


def _usual_at_first(losses: Sequence[float]) -> float:
    """The loss of untrained weights, told from the first losses even if these explode at once.

    Adam with far too large a learning rate ruins the weights with its first update.
    """
    median = statistics.median(losses)
    return losses[0] if median > _EXPLODED * max(losses[0], 1.0) else median


_RUIN = '; and the weights are ruined: the loss is %g, %s, and was %g at most'
_SPIKES = '; and the last %d steps were spikes, so the weights are taken for ruined'
_IN_MEMORY = 'up to %d snapshots, of at most %d MB each, are kept in memory.'
_NONE_KEPT = 'no snapshots are kept, %s; rollback goes back to checkpoints.'
_NO_ROOM = (
    'as %d copies of the variables, of %d MB each, would take more than half of the memory, of '
    'which %d MB are free (Rollback(snapshots=2) keeps the fewest)'
)
_ODD = 'since variable %r has a value that its initializer cannot be given'
