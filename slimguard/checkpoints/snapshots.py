"""States of a training, to go back to between two checkpoints: :class:`Snapshots`.

Which of them is trusted is decided here as well. A state may be finite and ruined already: the
update that ruins the weights comes some steps before the first NaN. So a state is on probation
until the training has gone on well for a while, and its loss is compared with what it was before.
"""

import collections
import math
import statistics
import time
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.checkpoints.snapshot_values import Room, Values, assign, find_room, size_of
from slimguard.checkpoints.unlisted import all_variables

# Taking snapshots takes at most this share of the time of a training.
_SHARE = 0.01
# So many times as long as the one before is each trusted snapshot kept.
_SPACING = 8
# So many good steps after it a state is trusted.
PROBATION = 10
# A state whose loss is so many times that of all older ones, and that of the first steps, is
# ruined, though it may be finite. A loss that rises for another reason does not rise so far.
_RUINED = 10.0
# After a state that is good the loss does not rise so many times: an explosion may be slow. The
# older one may be much older, so this is asked only of a state that is the last to go back to.
_ROSE = 1.5
# The weights are ruined now if the last losses are so many times that. What is called so is not
# skipped any more, and there are losses that rise tenfold, as those of two networks that compete.
_RUINED_NOW = 100.0
# If it is so many times the first loss, and 1, ten steps from the start, it exploded in these.
_EXPLODED = 1000.0
# The loss of a state is the median of the losses of so many good steps before it, and that of the
# first steps is the median of as many. With few images in a batch any one of them may be small.
_LOSSES = 10
# The loss now is the median of so many. And so many steps in a row that are far out of bounds are
# not to be blamed on their batches.
_FEW = 3
_OF_FEW = 'the median of the last %d good steps' % _FEW


class Snapshot(NamedTuple):
    """The global variables between two steps.

    Attributes:
      name: what the record of incidents calls it.
      step: the global step, or None if there is none.
      taken_at: how many good steps there had been.
      loss: the absolute loss of the last steps before it, or None if nobody told.
      loss_after: that of the steps that it was on probation for, if it is over.
      values: by name of the variable's op.
    """

    name: str
    step: Optional[int]
    taken_at: int
    loss: Optional[float]
    values: Values
    loss_after: Optional[float] = None


class _Pace:
    """When the next snapshot is due: so late that all together take a small share of the time.

    Args:
      now: tells the time, in seconds.
    """

    def __init__(self, now: Callable[[], float]):
        self.now = now
        self._due = 0.0
        self._took = math.inf  # the one before, in seconds

    def is_due(self) -> bool:
        return self.now() >= self._due

    def note(self, began: float, is_first: bool) -> None:
        """Notes one that was begun then, and is taken now."""
        ended = self.now()
        # The first time a session prepares what it reads, which tells nothing of the next times.
        if is_first:
            self._due = ended
            return
        # One that took longer than the one before was kept waiting by what else the machine does.
        before, self._took = self._took, ended - began
        self._due = ended + min(before, self._took) / _SHARE


class Snapshots:
    """Takes snapshots of a session at a pace that costs little, and tells which one to go back to.

    There are at most `most` of them at a time, in memory, or on disk where that is short: one that
    is on probation, and the others trusted, each kept eight times as long as the one after it, so
    that they reach back far.

    Args:
      graph: the graph.
      most: how many are kept.
      clock: tells the time, in seconds.
      has_unlisted: whether they hold variables that no collection of the graph lists.

    Attributes:
      most: as given; less where there is little room.
      is_wanted: whether any are kept; else nobody goes back.
    """

    def __init__(
        self,
        graph: tf.Graph,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        has_unlisted: bool = False,
    ):
        self.most = most
        self._pace = _Pace(clock)
        self._graph = graph
        self._has_unlisted = has_unlisted
        self._variables: Dict[str, Any] = {}  # by name
        self._kept: List[Snapshot] = []  # the newest first: it is, or was, on probation
        self._followed = 0  # how many have been followed by another
        self.is_wanted = most > 0
        self._room = Room(None, most, 0, None)
        self._good = 0  # steps
        self._losses: Deque[float] = collections.deque(maxlen=_LOSSES)
        self._spikes = 0  # since the last good step or return
        self._first_loss: Optional[float] = None
        self._went_back_to: Optional[Snapshot] = None
        self._went_back_at: Optional[int] = None  # good steps

    def step_was_good(self, session, loss: Any) -> None:
        """Notes a step, between two of which this is called; takes a snapshot if one is due.

        Args:
          session: the session.
          loss: the loss of the step, or None if it is not known.
        """
        self._good += 1
        self._spikes = 0
        if not self.is_wanted:
            return
        if loss is not None:
            self._losses.append(abs(float(loss)))
            if self._first_loss is None and len(self._losses) == _LOSSES:
                self._first_loss = _usual_at_first(self._losses)
        is_over = not self._kept or self._good - self._kept[0].taken_at >= PROBATION
        if self._kept and self._good - self._kept[0].taken_at == PROBATION and self._losses:
            loss_after = statistics.median(self._losses)
            self._kept[0] = self._kept[0]._replace(loss_after=loss_after)
        if self.most and is_over and self._pace.is_due():
            self._take(session)

    def step_was_spike(self) -> None:
        """Notes a step that was held as it was finite and far out of bounds."""
        self._spikes += 1

    @property
    def is_soon(self) -> bool:
        """Whether the last return was so short a time ago that it seems to have been of no use."""
        return self._went_back_at is not None and (self._good - self._went_back_at < 2 * PROBATION)

    def trusted(self, is_last: bool = False, is_further: bool = True) -> Optional[Snapshot]:
        """The newest one that is trusted, or None.

        Args:
          is_last: whether nobody will look for an older one if this does not help: then the loss
            must not have risen after it either.
          is_further: whether, shortly after a return, it is to be older than the one that was
            returned to.
        """
        kept = self._kept[::-1]
        before = None
        if self.is_soon and is_further:
            if self._went_back_to is None:
                return None  # it was a checkpoint, and all that is kept is newer
            before = self._went_back_to.taken_at
        for number in reversed(range(len(kept))):
            is_older = before is None or kept[number].taken_at < before
            is_over = self._good - kept[number].taken_at >= PROBATION
            is_bad = self._is_ruined(kept[number], kept[:number])
            is_bad = is_bad or is_last and _rose(kept[number])
            if is_older and is_over and not is_bad:
                return kept[number]
        return None

    def restore(self, session, snapshot: Snapshot) -> None:
        """Goes back to a snapshot.

        Raises:
          OSError: if it cannot be read; some of the variables may have its values then.
        """
        values = snapshot.values.items()
        assign(session, ((self._variables[name], value) for name, value in values))
        self.note_return(snapshot)

    def drop(self) -> None:
        """Keeps none of them any more, and takes no others."""
        self.most = 0
        self._keep_only(lambda snapshot: False)

    def forget_before_restart(self, step: Optional[int]) -> None:
        """Drops what is of before the variables were made anew: there one is later than now."""
        later = [each.taken_at for each in self._kept if _is_later(each, step)]
        self._keep_only(lambda each: not later or each.taken_at > max(later))

    def note_return(self, snapshot: Optional[Snapshot]) -> None:
        """Notes that the training went back: to a snapshot, or to a checkpoint. What came after it
        is dropped."""
        reached = -1 if snapshot is None else snapshot.taken_at
        self._keep_only(lambda each: each.taken_at <= reached)
        self._went_back_to, self._went_back_at = snapshot, self._good
        self._losses.clear()
        self._spikes = 0

    @property
    def went_back_to(self) -> Optional[Snapshot]:
        """The one that was returned to last, if it was one, and is still kept."""
        return next((each for each in self._kept if each is self._went_back_to), None)

    def ruin(self, is_last: bool = False) -> str:
        """Why the weights are ruined as they are now, though they may be finite; else ''.

        Args:
          is_last: whether the training ends here. Then the loss of the last good step is enough:
            an explosion may have had no other before all of its losses were Inf.
        """
        if self.is_wanted and self._spikes >= _FEW:
            return _SPIKES % self._spikes
        usual = _usual_loss(self._first_loss, self._kept[::-1])
        few = 1 if is_last else _FEW
        if usual is None or len(self._losses) < few:
            return ''
        now = statistics.median(list(self._losses)[-few:])
        whose = 'that of the last good step' if is_last else _OF_FEW
        return _RUIN % (now, whose, usual) if now > _RUINED_NOW * usual else ''

    def _is_ruined(self, snapshot: Snapshot, older: List[Snapshot]) -> bool:
        usual = _usual_loss(self._first_loss, older)
        if snapshot.loss is None or usual is None:
            return False
        return snapshot.loss > _RUINED * usual

    def _take(self, session) -> None:
        is_first = not self._variables
        # Not before: hooks may add some when they begin, and scripts when they have trained.
        self._variables = _variables_of(self._graph, self._has_unlisted)
        if is_first:
            self._room = find_room(size_of(session, self._variables), self.most)
            self.most = self._room.count
            if not self.most:
                return
        began = self._pace.now()
        try:
            values = self._room.read(session, self._variables)
        except OSError as error:
            self._give_up(_NO_ROOM, error)
            return
        shapes = {name: values.shape_of(name) for name in values}
        odd = [name for name in values if not _can_assign(self._variables[name], shapes[name])]
        if odd:
            values.close()
            self._give_up(_ODD, odd[0])
            return
        loss = statistics.median(self._losses) if self._losses else None
        step = _step_in(values, self._graph)
        self._keep(Snapshot(_name_of(step, self._good), step, self._good, loss, values))
        self._pace.note(began, is_first)

    def _give_up(self, message: str, reason: Any) -> None:
        tf1.logging.warning(message, reason)
        self.drop()

    def _keep_only(self, is_kept: Callable[[Snapshot], bool]) -> None:
        for each in self._kept:
            if not is_kept(each):
                each.values.close()
        self._kept = [each for each in self._kept if is_kept(each)]

    def _keep(self, snapshot: Snapshot) -> None:
        if len(self._kept) == self.most:  # the one to go is the last that the one after replaces
            self._followed += 1
            levels = range(1, self.most - 1)
            gone = next((k for k in levels if self._followed % _SPACING**k), self.most - 1)
            self._kept.pop(gone).values.close()
        self._kept.insert(0, snapshot)


def _is_later(snapshot: Snapshot, step: Optional[int]) -> bool:
    return step is not None and snapshot.step is not None and snapshot.step > step


def _variables_of(graph: tf.Graph, has_unlisted: bool) -> Dict[str, Any]:
    """By name, the variables that a snapshot holds: all but local ones."""
    if has_unlisted:
        local = graphs.local_in(graph)
        return {name: v for name, v in all_variables(graph).items() if v.op not in local}
    with graph.as_default():
        return {v.op.name: v for v in graphs.on_each_device(tf1.global_variables())}


def _step_in(values: Values, graph: tf.Graph) -> Optional[int]:
    step = graphs.global_step(graph)
    return int(values[step.op.name]) if step is not None and step.op.name in values else None


def _name_of(step: Optional[int], good: int) -> str:
    if step is not None:
        return 'a snapshot of global step %d' % step
    return 'a snapshot after %d good step%s' % (good, '' if good == 1 else 's')


def _usual_loss(first_loss: Optional[float], snapshots: List[Snapshot]) -> Optional[float]:
    """The largest loss of the first steps and of those snapshots that are not ruined.

    Args:
      first_loss: that of the first steps; None if nobody told.
      snapshots: the oldest first.
    """
    usual = first_loss
    for loss in [each.loss for each in snapshots if each.loss is not None]:
        if usual is None or loss <= _RUINED * usual:
            usual = max(loss, usual or 0.0)
    return usual


def _rose(snapshot: Snapshot) -> bool:
    """Whether the loss rose after it: then something was wrong already, or soon was."""
    before, after = snapshot.loss, snapshot.loss_after
    return before is not None and after is not None and after > _ROSE * before


def _usual_at_first(losses: Sequence[float]) -> float:
    """What the losses of the first steps say of untrained weights, also if these explode at once.

    Adam with a rate that is far too large has ruined them with its first update.
    """
    median = statistics.median(losses)
    return losses[0] if median > _EXPLODED * max(losses[0], 1.0) else median


def _can_assign(variable: Any, shape: Sequence[int]) -> bool:
    """Whether `assign` can put a value into a variable; its shape may have changed."""
    inputs = getattr(variable.initializer, 'inputs', ())
    return len(inputs) > 1 and inputs[1].shape.is_compatible_with(shape)


_RUIN = '; and the weights are ruined: the loss is %g, %s, and was %g at most'
_ODD = (
    'slimguard: no snapshots are taken, since variable %r has a value that its initializer cannot '
    'be given; rollback goes back to checkpoints.'
)
_SPIKES = '; and the last %d steps were spikes, so the weights are taken for ruined'
_NO_ROOM = (
    'slimguard: no more snapshots are kept on disk, where a checkpoint may need the room (%s); '
    'rollback goes back to checkpoints.'
)
