"""States of a training, to go back to between two checkpoints: :class:`Snapshots`.

This module also decides which of them is trusted. A state may be finite and yet ruined: the update
that ruins the weights comes some steps before the first NaN. So a state is kept only if its loss is
not far above earlier losses, and it is on probation until enough good steps have followed it.
"""

import collections
import math
import statistics
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.checkpoints.variables import all_variables, assign, read_variables, size_of
from slimguard.incidents.history import EXPLODED, FAR
from slimguard.system import memory
from slimguard.system.log import log

# A state is trusted after this many good steps. Two states are at least this many steps apart.
PROBATION = 10
# The gap to the next state is an eighth of the steps so far, and at most 200 steps.
_SHARE, _MOST_STEPS = 8, 200
# Copying this many bytes takes no longer than a step. If a state is N times as large, the gap is N
# times as long, but no longer than the number of steps so far.
_BYTES = 32 << 20
# A state counts as ruined, and is not kept, if its loss is more than 10 times the usual loss. A
# loss rarely rises that far for another reason.
_RUIN_FACTOR = 10.0
# The present weights count as ruined if the last losses are more than FAR times the usual loss. FAR
# is larger than _RUIN_FACTOR: once weights are ruined no bad step is skipped, and the losses of two
# competing networks may rise tenfold. The loss of a state, like the loss of the first steps, is the
# median of 10 good steps: with few images in a batch any single loss may be small.
_LOSSES = 10
# The present loss is the median of the last 3 good steps. After 3 spikes in a row the weights are
# taken for the cause, not the batches.
_FEW = 3
_OF_FEW = 'median loss of the last %d applied steps' % _FEW


class Snapshot(NamedTuple):
    """The global variables between two steps.

    Attributes:
      name: its name in the record of incidents.
      step: the global step, or None if there is none.
      taken_at: how many good steps there had been.
      values: the values of the variables, by the names of their ops.
    """

    name: str
    step: Optional[int]
    taken_at: int
    values: Dict[str, np.ndarray]


class Losses:
    """The absolute losses of good steps, and whether the last losses show ruined weights.

    Weights may be finite and ruined: an explosion writes some updates before its first Inf. In the
    first ten steps the usual loss is the first loss; then it is the largest median so far. A new
    median is taken whenever a small model would keep a state.
    """

    def __init__(self) -> None:
        self._last: Deque[float] = collections.deque(maxlen=_LOSSES)
        self._usual = self._limit = 0.0
        self._usual_is = ''  # which loss is the usual one, in words
        self._good, self._due = 0, _LOSSES  # good steps: so far, and at the next median

    def add(self, loss: Any) -> None:
        """Notes the loss of a good step; None if it is not known."""
        if loss is None or math.isnan(loss):
            return
        self._last.append(abs(float(loss)))
        self._good += 1
        if self._good == 1:
            self._usual, self._limit = self._last[0], EXPLODED * max(self._last[0], 1.0)
            self._usual_is = 'the first loss'
        if self._good < self._due or self.is_far_above:
            return
        median = statistics.median(self._last)
        # Adam with far too large a rate explodes with its first update.
        is_usual = median <= self._limit if self._good <= _LOSSES else median > self._usual
        if is_usual:
            self._usual = median
            self._usual_is = 'the largest median of %d steps before' % _LOSSES
        self._limit = FAR * self._usual or math.inf  # if the usual loss is 0, there is no limit
        self._due = self._good + steps_to_next(self._good, 0)

    def forget_last(self) -> None:
        """Call it after a rollback: the last losses do not belong to the restored weights."""
        self._last.clear()

    @property
    def is_far_above(self) -> bool:
        """Whether the loss is so far above the usual loss that the state counts as ruined."""
        if self._good <= _LOSSES or not self._last:
            return False
        return statistics.median(self._last) > _RUIN_FACTOR * self._usual > 0

    def ruin(self, is_last: bool = False, refused: Optional[float] = None) -> str:
        """The end of a sentence that names the losses that show ruined weights; '' if none do.

        Args:
          is_last: whether the training ends here. Then one high loss is enough: the next loss of an
            explosion is often Inf.
          refused: the loss of the refused step that ends the training; None if its batch is at
            fault. If it is finite, it alone decides, since only this loss is computed after the
            last update.
        """
        few = 1 if is_last else _FEW
        if len(self._last) < few:
            return ''
        now = statistics.median(list(self._last)[-few:])
        whose = 'loss of the last applied step' if is_last else _OF_FEW
        if refused is not None and math.isfinite(refused):
            now, whose = abs(refused), 'loss of the refused step'
        return _RUIN % (whose, now, self._usual_is, self._usual) if now > self._limit else ''


class Snapshots:
    """Copies of the variables in memory, spread over the steps so far; chooses the one to restore.

    Old states are kept further apart. The newest is on probation. If there is no room for all of
    them, none is kept. No clock decides, so a busy machine keeps the same states as an idle one.

    Args:
      most: how many snapshots are kept.
      is_shared: whether other ranks have to keep and restore the same states. Then no value that
        may differ between ranks, such as a loss or the free memory, decides anything.

    Attributes:
      most: as given; 0 once no more snapshots are kept.
      kept: the snapshots, the newest first; only the newest may be on probation.
      is_wanted: whether any snapshots were asked for; if not, nothing restores them.
      good: how many good steps there have been.
      losses: the losses of good steps; empty if `is_shared`.
    """

    def __init__(self, most: int = 0, is_shared: bool = False):
        self.most = most
        self.is_wanted = most > 0
        self.good = 0
        self._is_shared = is_shared
        self._variables: Dict[str, Any] = {}  # by name
        self._size: Optional[int] = None  # the bytes of a snapshot
        self.kept: List[Snapshot] = []
        self._due = 0  # the number of good steps after which the next snapshot is taken
        self.losses = Losses()
        self._spikes = 0  # since the last good step or rollback
        # Counts of good steps: at the last rollback, and at the snapshot that it restored, if any.
        self._rolled_back_at: Optional[int] = None
        self._rolled_back_to: Optional[int] = None

    def step_was_good(self, session, loss: Any) -> None:
        """Notes a step, before the next one begins; takes a snapshot if one is due.

        Args:
          loss: the loss of the step, or None if it is not known.
        """
        self.good += 1
        self._spikes = 0
        if not self._is_shared:
            self.losses.add(loss)
        # Soon after a rollback the older snapshots may still be needed.
        if self.most and self.good >= self._due and not self.is_soon:
            if not self.losses.is_far_above:
                self._take(session)

    def step_was_spike(self) -> None:
        """Notes a refused step that was finite, but far out of bounds."""
        if not self._is_shared:
            self._spikes += 1

    @property
    def is_soon(self) -> bool:
        """Whether the last rollback was so recent that it seems not to have helped."""
        at = self._rolled_back_at
        return at is not None and self.good - at < 2 * PROBATION

    def trusted(self) -> Optional[Snapshot]:
        """The newest trusted snapshot, or None.

        Soon after a rollback this is an older snapshot than the restored one; or None after a
        rollback to a checkpoint, since all snapshots are newer than that checkpoint.
        """
        before = self._rolled_back_to or 0 if self.is_soon else self.good
        for each in self.kept:
            if each.taken_at < before and self.good - each.taken_at >= PROBATION:
                return each
        return None

    def restore(self, session, snapshot: Snapshot) -> None:
        """Goes back to a snapshot."""
        values = snapshot.values.items()
        assign(session, ((self._variables[name], value) for name, value in values))
        self.note_rollback(snapshot)

    def drop(self) -> None:
        """Drops all snapshots, and takes no more."""
        self.most = 0
        self.kept = []

    def forget_before_restart(self, step: Optional[int]) -> None:
        """At a restart at `step`, drops the last snapshot of a later step and all older ones."""
        later = [each.taken_at for each in self.kept if _is_later(each, step)]
        if later:
            self.kept = [each for each in self.kept if each.taken_at > max(later)]
            self._due = 0

    def note_rollback(self, snapshot: Optional[Snapshot]) -> None:
        """Notes a rollback to a snapshot or, if None, to a checkpoint.

        Drops all newer snapshots; after a rollback to a checkpoint, all of them.
        """
        to = None if snapshot is None else snapshot.taken_at
        self.kept = [each for each in self.kept if to is not None and each.taken_at <= to]
        self._due = 0
        self._rolled_back_to, self._rolled_back_at = to, self.good
        self.losses.forget_last()
        self._spikes = 0

    @property
    def rolled_back_to(self) -> Optional[Snapshot]:
        """The snapshot that the last rollback restored, if it is still kept; else None."""
        return next((each for each in self.kept if each.taken_at == self._rolled_back_to), None)

    def ruin(self) -> str:
        """Why finite weights count as ruined; '' if they do not, or if no rollback is wanted."""
        if self.is_wanted and self._spikes >= _FEW:
            return _SPIKES % self._spikes
        losses = self.losses.ruin() if self.is_wanted else ''
        return losses and TAKEN_FOR_RUINED + losses

    def _take(self, session) -> None:
        # List the variables for each snapshot: hooks and scripts may have added some.
        local = graphs.local_in(session.graph)
        variables = all_variables(session.graph)
        self._variables = {name: each for name, each in variables.items() if each.op not in local}
        if self._size is None:
            self._size = size_of(self._variables)
            free = memory.available()
            if free is not None and 2 * self.most * self._size > free and not self._is_shared:
                log().warning(_NO_ROOM, self.most, self._size >> 20, free >> 20)
                self.drop()
                return
        values = read_variables(session, self._variables)
        step = _step_in(values, session.graph)
        snapshot = Snapshot(_name_of(step, self.good), step, self.good, values)
        self.kept.insert(0, snapshot)
        self._due = self.good + steps_to_next(self.good, self._size)
        if len(self.kept) > self.most:
            del self.kept[one_too_many([each.taken_at for each in self.kept])]


def one_too_many(taken_at: Sequence[int]) -> int:
    """The index of the state to drop: the one whose neighbours' ages have the smallest ratio.

    So the ages of the kept states grow exponentially. The oldest has the start of the training as a
    neighbour. The newest two stay: one is on probation, and one is the newest that is trusted.

    Args:
      taken_at: for each state, from the newest on, how many good steps there had been.
    """
    ages = [taken_at[0] - each for each in (*taken_at, 0)]
    older = range(2, len(taken_at))
    return min(older, key=lambda n: ages[n + 1] / ages[n - 1], default=1)


def steps_to_next(good: int, size: int) -> int:
    """How many good steps after a state the next state is kept.

    Args:
      good: how many good steps there had been.
      size: the bytes of the state.
    """
    times = max(1.0, size / _BYTES)
    wanted = min(max(good / _SHARE, PROBATION * times), _MOST_STEPS * times)
    return int(max(PROBATION, min(good, wanted)))


def _step_in(values: Dict[str, np.ndarray], graph: tf.Graph) -> Optional[int]:
    step = graphs.global_step(graph)
    return int(values[step.op.name]) if step is not None and step.op.name in values else None


def _is_later(snapshot: Snapshot, step: Optional[int]) -> bool:
    return step is not None and snapshot.step is not None and snapshot.step > step


def _name_of(step: Optional[int], good: int) -> str:
    if step is not None:
        return 'a snapshot of global step %d' % step
    return 'a snapshot after %d good step%s' % (good, '' if good == 1 else 's')


TAKEN_FOR_RUINED = 'the weights are taken for ruined'
# The reason of an incident has this if the last state is saved apart, and not as the newest.
IS_RUINED = TAKEN_FOR_RUINED + ', though they are finite'
_RUIN = ': the %s is %.4g; %s was %.4g'
_SPIKES = 'the last %d steps were spikes, so the weights are taken for ruined'
_NO_ROOM = (
    'no snapshots are kept, as %d copies of the variables, of %d MB each, would take more than '
    'half of the memory, of which %d MB are free (Rollback(snapshots=2) keeps the fewest); '
    'rollback goes back to checkpoints.'
)
