"""What checks found: flags in the graph, each with a label; and a sentence made of the labels.

Nothing is decided here: the ops that builder.py adds to the graph decide.
"""

from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from slimguard.system import texts

# The beginning of an error that a gate raises. announcement.py gives it to an Assert, whose message
# goes on with `] [` and the labels of what was bad, joined by `|`: see `labels_in`.
ERROR = 'slimguard: this step wrote nothing. Bad: '


# What the reason says before the name of a loss that is too large.
ABOVE_MAX_LOSS = 'above max_loss: '

# The name of the norm of all gradients together.
GRADIENT_NORM = 'gradient norm'


class Label(NamedTuple):
    """What one element of a gate's `bad` vector stands for."""

    # 'value', 'limit', 'norm': the update is refused. 'before': a copy is bad,
    # and the update does not begin. 'late', 'state', 'written': found once the update has run.
    # 'rank': the rank found what others did not.
    kind: str
    name: str

    def __str__(self) -> str:
        return '%s:%s' % self


class Flags(NamedTuple):
    """What some checks found.

    Attributes:
      labels: what each element of `vector` stands for.
      vector: a bool vector; True is bad.
    """

    labels: Sequence[Label]
    vector: tf.Tensor


def join_flags(parts: Sequence[Flags]) -> Flags:
    """All flags of `parts`, one after the other."""
    labels: List[Label] = []
    for part in parts:
        labels.extend(part.labels)
    vectors = [part.vector for part in parts]
    return Flags(labels, vectors[0] if len(vectors) == 1 else tf.concat(vectors, 0))


class Verdict(NamedTuple):
    """What was bad about a step: the names, and a sentence."""

    tensors: Tuple[str, ...]
    reason: str
    state_lost: bool  # variables were already not finite before the step


def labels_in(message: str) -> List[Label]:
    """The labels in the message of an error that a gate raised; empty for any other message."""
    _, found, rest = message.partition(ERROR + '] [')
    items = rest.partition(']')[0].split('|') if found else ()
    return [Label(*item.split(':', 1)) for item in items]


def explain(labels: Sequence[Label], limits: Optional[Mapping[str, str]] = None) -> Verdict:
    """Puts the labels of a bad step into a sentence.

    Args:
      labels: the labels of all that was bad.
      limits: by kind, 'limit' or 'norm', a text about a number above its limit, if the caller knows
        more about it than the gate; '' for no text.
    """
    limits = limits or {}

    def named(*kinds: str, most: int = 5) -> str:
        names = dict.fromkeys(label.name for label in labels if label.kind in kinds)
        return texts.listed(list(names), most)

    parts = []
    if named('value', 'late'):
        parts.append('not finite: ' + named('value', 'late'))
    if named('limit'):
        parts.append(limits.get('limit', ABOVE_MAX_LOSS + named('limit')))
    if named('norm'):
        parts.append(limits.get('norm', 'too large: ' + named('norm')))
    parts = [part for part in parts if part]
    # A variable that is bad after a refused update was so before; a late loss refuses none.
    has_run = named('late') or not parts
    state_lost = bool(named('before') or (named('state') and not has_run))
    if state_lost:
        parts.append('already not finite before this step: ' + named('before', 'state'))
    elif named('state', 'written') and not parts:
        parts.append('not finite once updated: ' + named('state', 'written'))
    elif named('state'):  # not 'written': the forward pass wrote it, and is named above
        parts.append('not finite once updated: ' + named('state'))
    where = ' (on %s)' % named('rank') if named('rank') else ''
    names = (label.name for label in labels if label.kind != 'rank')
    reason = ('; '.join(parts) or 'not finite') + where
    return Verdict(tuple(dict.fromkeys(names)), reason, state_lost)
