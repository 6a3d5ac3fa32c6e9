"""The findings of checks: flags in the graph, each with a label; and a sentence made of labels.

This module decides nothing: the ops that builder.py adds to the graph do.
"""

from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from slimguard.system import texts

# The beginning of an error that a gate raises. announcement.py gives it to an Assert, whose message
# goes on with `] [` and the labels of what was bad, joined by `|`: see `labels_in`.
ERROR = 'slimguard: this step wrote nothing. Bad: '


# The words before the name of a loss that is too large.
ABOVE_MAX_LOSS = 'above max_loss'

# The name of the norm of all gradients together.
GRADIENT_NORM = 'gradient norm'


class Label(NamedTuple):
    """The meaning of an element of a gate's `bad` vector: the kind of finding, and a name."""

    kind: str
    name: str

    # The kinds. These are found before the update, and prevent it:
    VALUE = 'value'  # a value is not finite
    LIMIT = 'limit'  # the loss is above its limit
    NORM = 'norm'  # the norm of all gradients is above its limit
    BEFORE = 'before'  # a variable was not finite before the step
    # These are found after the update, and undo it:
    LATE = 'late'  # a value computed after the update is not finite
    STATE = 'state'  # a variable is not finite
    WRITTEN = 'written'  # a variable that the forward pass wrote is not finite
    # The rank with this name found something that other ranks did not:
    RANK = 'rank'

    def __str__(self) -> str:
        return '%s:%s' % self


class Flags(NamedTuple):
    """The findings of some checks.

    Attributes:
      labels: what each element of `vector` stands for.
      vector: a bool vector; True is bad.
    """

    labels: Sequence[Label]
    vector: tf.Tensor


def join_flags(parts: Sequence[Flags]) -> Flags:
    """Concatenates the flags of `parts`."""
    labels: List[Label] = []
    for part in parts:
        labels.extend(part.labels)
    vectors = [part.vector for part in parts]
    return Flags(labels, vectors[0] if len(vectors) == 1 else tf.concat(vectors, 0))


class Verdict(NamedTuple):
    """What was bad about a step, as an `Incident` has it: the names, and a sentence."""

    tensors: Tuple[str, ...]
    reason: str
    state_lost: bool  # variables were already not finite before the step


def labels_in(message: str) -> List[Label]:
    """The labels in the message of an error that a gate raised; empty for any other message."""
    _, found, rest = message.partition(ERROR + '] [')
    items = rest.partition(']')[0].split('|') if found else ()
    return [Label(*item.split(':', 1)) for item in items]


def explain(
    labels: Sequence[Label],
    limits: Optional[Mapping[str, str]] = None,
    max_loss: Optional[float] = None,
) -> Verdict:
    """Puts the labels of a bad step into a sentence.

    Args:
      labels: the labels of all that was bad.
      limits: by kind, `Label.LIMIT` or `Label.NORM`, the caller's text about a loss or norm above
        its limit, which replaces the gate's text; '' for no text.
      max_loss: the limit of the loss, if it is known.
    """
    limits = limits or {}
    above = ABOVE_MAX_LOSS + ('' if max_loss is None else '=%g' % max_loss)

    def named(*kinds: str, most: int = 5) -> str:
        names = dict.fromkeys(label.name for label in labels if label.kind in kinds)
        return texts.listed(list(names), most)

    parts = []
    if named(Label.VALUE, Label.LATE):
        parts.append('not finite: ' + named(Label.VALUE, Label.LATE))
    if named(Label.LIMIT):
        parts.append(limits.get(Label.LIMIT, '%s: %s' % (above, named(Label.LIMIT))))
    if named(Label.NORM):
        parts.append(limits.get(Label.NORM, 'too large: ' + named(Label.NORM)))
    parts = [part for part in parts if part]
    # If the update was refused, a bad variable was bad before it. A late loss refuses no update.
    has_run = named(Label.LATE) or not parts
    state_lost = bool(named(Label.BEFORE) or (named(Label.STATE) and not has_run))
    if state_lost:
        parts.append('already not finite before this step: ' + named(Label.BEFORE, Label.STATE))
    elif named(Label.STATE, Label.WRITTEN) and not parts:
        parts.append('not finite once updated: ' + named(Label.STATE, Label.WRITTEN))
    elif named(Label.STATE):  # not WRITTEN, which is named above
        parts.append('not finite once updated: ' + named(Label.STATE))
    where = ' (on %s)' % named(Label.RANK) if named(Label.RANK) else ''
    names = (label.name for label in labels if label.kind != Label.RANK)
    reason = ('; '.join(parts) or 'not finite') + where
    return Verdict(tuple(dict.fromkeys(names)), reason, state_lost)
