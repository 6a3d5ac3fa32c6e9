"""Ranks that train together: they decide as one whether a step is bad, to keep the same weights.

Each rank runs the same graph with a batch of its own. Gradients reach a gate already added up, but
the loss, moving averages and limits belong to one rank alone. If one rank refused a step that
another writes, their weights would differ from then on. So if a step has collectives, the ranks
share each decision by a collective of our own: whether the step takes the fast path and, if not,
what each exact check found. For a yes or no, the collective counts the ranks that say no. For
findings, it adds up tables in which each rank fills its own row, so that each rank knows the
findings of all.

The first such message of a step also carries the signals that a rank has received, so that all
ranks end after the same step. Before the first step, each rank sends the others what it checks.
"""

import json
import re
import threading
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.gate.building.flags import Flags, Label, explain
from slimguard.graph import ops
from slimguard.graph.devices import processor_of
from slimguard.system import texts
from slimguard.system.signals import NUMBERS, SIGNALS, SharedSignals

# Called with a subject and a text on all ranks; returns the texts of all ranks, by rank.
Exchange = Callable[[str, str], List[str]]


class Checks:
    """What this rank checks in the steps of a graph, and whether the others check the same."""

    def __init__(self) -> None:
        self._words: Dict[str, List[str]] = {}  # by train op
        self._are_same: Set[str] = set()
        self._lock = threading.Lock()

    def note(self, train_op: str, labels: Sequence[Label]) -> None:
        """Notes what the steps of a train op check."""
        self._words[train_op] = list(map(_in_words, labels))

    def require_same(self, train_op: str, exchange: Optional[Exchange]) -> None:
        """Compares the checks of all ranks, before the first step of a train op.

        Raises:
          ValueError: if another rank checks other values.
        """
        if train_op in self._are_same or exchange is None:
            return
        # One exchange at a time: if a run has two train ops, the ranks may come here in different
        # orders, and each exchange is about both.
        with self._lock:
            if train_op in self._are_same:
                return
            told = [json.loads(each) for each in exchange('checks', json.dumps(self._words))]
            found = _differences(told, train_op)
            if found:
                raise ValueError(_DIFFER % (train_op, '; '.join(found)))
            self._are_same.add(train_op)


def _in_words(label: Label) -> str:
    # The number in a loss's name may depend on what else a rank has built, so leave out the name.
    is_loss = label.name.startswith('loss ')
    return explain([label._replace(name='loss') if is_loss else label]).reason


def _differences(told: Sequence[Dict[str, List[str]]], train_op: str) -> List[str]:
    """For each rank, what only it checks, and what only the first rank checks."""
    without = [
        '%s guards %s' % (name_of(rank), texts.listed(sorted(checks), _MOST_NAMES))
        for rank, checks in enumerate(told)
        if train_op not in checks
    ]
    if without:
        return without
    found = []
    first = told[0][train_op]
    for rank, checks in enumerate(told):
        mine = checks[train_op]
        if list(map(_blurred, mine)) == list(map(_blurred, first)):
            continue
        more = [each for each in mine if each not in first]
        less = [each for each in first if each not in mine]
        if more:
            found.append(_MORE % (name_of(rank), name_of(0), texts.listed(more, _MOST_NAMES)))
        if less:
            found.append(_MORE % (name_of(0), name_of(rank), texts.listed(less, _MOST_NAMES)))
        if not (more or less):
            found.append('%s checks the same values in another order' % name_of(rank))
    return found


def _blurred(words: str) -> str:
    # Horovod puts the number of the rank into names of variables, so numbers do not count.
    return re.sub(r'\d+', '0', words)


_MOST_NAMES = 5
_MORE = '%s checks what %s does not (%s)'
_DIFFER = (
    'the graphs of the ranks differ, so that they cannot decide together on a step of train op %r: '
    '%s. Build the same graph on all ranks, but for their batches'
)


class Ranks(NamedTuple):
    """The ranks that run a step together.

    Attributes:
      rank: the number of this process among them, from 0 on.
      size: how many there are.
      add: called with a float32 vector and a unique name; returns the sum of the vectors of all
        ranks. All ranks have to run it, or none.
      exchange: sends a text to the others, outside the training's sessions; or None.
      signals: the signals that this process has received.
      checks: what is checked in the steps of the graph.
      train_op: the name of the train op.
    """

    rank: int = 0
    size: int = 1
    add: Callable[[tf.Tensor, str], tf.Tensor] = lambda vector, name: vector
    exchange: Optional[Exchange] = None
    signals: SharedSignals = SIGNALS
    checks: Checks = Checks()
    train_op: str = ''

    @property
    def are_several(self) -> bool:
        return self.size > 1

    @property
    def end_together(self) -> bool:
        """Whether a signal to one rank ends all ranks."""
        return self.exchange is not None

    def all_of(self, flag: tf.Tensor, name: str) -> tf.Tensor:
        """Whether a bool scalar is true on all ranks; this is the first message of a step."""
        if not self.are_several:
            return flag
        against = tf.cast(tf.logical_not(flag), tf.float32)
        total = self._first_sum(tf.stack([against]), 1, name)
        return ops.none_of(tf.greater(total, 0.5))

    def any_of(self, flags: Flags, name: str, is_first: bool = False) -> Flags:
        """The flags set on any rank, and a flag for each rank that found what others did not.

        Args:
          flags: the findings of this rank.
          name: of the message.
          is_first: whether this is the ranks' first message in a step.
        """
        if not self.are_several or not (flags.labels or is_first):
            return flags
        shape = tf.constant([self.size, len(flags.labels)], tf.int32)
        mine = tf.one_hot([self.rank], self.size, axis=0, dtype=tf.float32)  # [size, 1]
        row = tf.cast(flags.vector, tf.float32)  # [flags]
        rows = tf.reshape(mine * row, [-1])
        size = self.size * len(flags.labels)
        table = self._first_sum(rows, size, name) if is_first else self.add(rows, name)
        found = tf.greater(tf.reshape(table, shape), 0.5)  # [size, flags]
        on_any = tf.reduce_any(found, axis=0)
        alone = tf.logical_and(found, tf.logical_not(tf.reduce_all(found, axis=0)))
        told = tf.concat([on_any, tf.reduce_any(alone, axis=1)], 0)
        ranks = [Label(Label.RANK, name_of(rank)) for rank in range(self.size)]
        return Flags([*flags.labels, *ranks], told)

    def note_checks(self, labels: Sequence[Label]) -> None:
        """Notes the labels of the step's flags, to send them to the other ranks."""
        if self.are_several:
            self.checks.note(self.train_op, labels)

    def _first_sum(self, vector: tf.Tensor, size: int, name: str) -> tf.Tensor:
        """As `add`, for the first message of a step, which also carries the received signals."""
        if not self.end_together:
            return self.add(vector, name)
        with tf.device(processor_of(vector.device)):
            heard = tf1.py_func(self._before_step, [], tf.float32, name='heard')
        heard.set_shape([len(NUMBERS)])
        total = self.add(tf.concat([vector, heard], 0), name)
        some, none = ops.branch(
            total[size:], tf.greater(tf.reduce_sum(total[size:]), 0.5), 'signals'
        )
        with tf.device(processor_of(vector.device)):
            told = tf1.py_func(self.signals.tell, [some], [], name='tell')
        done = ops.merge([ops.after([told], some, 'told'), none])
        return ops.after([done], total[:size], 'total')

    def _before_step(self) -> np.ndarray:
        self.checks.require_same(self.train_op, self.exchange)
        return self.signals.heard()


def name_of(rank: int) -> str:
    """The name of a rank in labels."""
    return 'rank %d' % rank
