"""Flags together with what they stand for."""

from typing import List, NamedTuple, Sequence

import tensorflow as tf

from slimguard.gate.flags_in_words import Label


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
    return Flags(labels, tf.concat([part.vector for part in parts], 0))
