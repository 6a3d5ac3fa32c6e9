"""Flags together with what they stand for."""

from typing import List, NamedTuple, Sequence

import tensorflow as tf

from slimguard.gate.flags_in_words import Label
from slimguard.graph import plain_ops


class Flags(NamedTuple):
    """What some checks found.

    Attributes:
      labels: what each element of `vector` stands for.
      vector: a bool vector; True is bad.
    """

    labels: Sequence[Label]
    vector: tf.Tensor


def each_once(flags: Flags) -> Flags:
    """The same, but a variable that was not finite before the update has no flag after it."""
    numbers = {label.name: n for n, label in enumerate(flags.labels) if label.kind == 'before'}
    if not numbers:
        return flags
    last = len(flags.labels)
    told = [
        numbers.get(label.name, last) if label.kind == 'state' else last for label in flags.labels
    ]
    no_flag = plain_ops.constant((False,), tf.bool)
    is_told = plain_ops.gather(plain_ops.concat([flags.vector, no_flag]), told)
    vector = plain_ops.logical_and(flags.vector, plain_ops.logical_not(is_told))
    return flags._replace(vector=vector)


def join_flags(parts: Sequence[Flags]) -> Flags:
    """All flags of `parts`, one after the other."""
    labels: List[Label] = []
    for part in parts:
        labels.extend(part.labels)
    return Flags(labels, plain_ops.concat([part.vector for part in parts]))
