"""Announces a bad step: without a watcher, the graph prints a line or raises."""

import sys
from typing import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.gate.building.flags import ERROR, Flags
from slimguard.gate.building.outcome import GlobalStep
from slimguard.gate.building.untold import Told, Untold
from slimguard.gate.reading.plan import Plan
from slimguard.graph import ops

# How many names are printed: a network has hundreds of gradients, and one NaN reaches them all.
_MOST_NAMES = 3

NOT_WATCHED = (
    'nothing of slimguard watches this session, so no policy acts and no cause is looked for: call '
    'slimguard.train in place of slim.learning.train, or use slimguard.watch() or a NanLossHook'
)


def announce(
    plan: Plan,
    flags: Flags,
    watched: tf.Tensor,
    untold: Untold,
    undone: tf.Tensor,
    step: GlobalStep,
) -> tf.Tensor:
    """Prints or raises after a bad step, or keeps its report for a watcher of the session.

    Args:
      plan: the plan of the gate.
      flags: the flags of the step.
      watched: bool scalar, whether neither to print nor to raise.
      untold: keeps the report, in a session that is watched.
      undone: a token that arrives after a bad step, when all variables are as they were.
      step: reads the global step.

    Returns:
      The token `undone`, once that is done.
    """
    quiet, loud = ops.branch(undone, watched, 'watched')
    kept, fed = ops.branch(quiet, untold.is_watched, 'kept')
    with tf.control_dependencies([kept]):
        loss = plan.losses[0] if plan.losses else None
        putting_aside = untold.keep(Told(flags.vector, step.read(kept), loss))
    with tf.control_dependencies([loud]):
        told = _print(plan, flags, step, loud)
        if plan.step.raises:
            # The line comes first: TensorFlow's error prints a page of its own before the labels.
            with tf.control_dependencies([told]):
                told = _raise(plan, flags)
    ends = [ops.after([putting_aside], kept, 'put_aside'), fed, ops.after([told], loud, 'told')]
    return ops.merge(ends, 'announced')


def _raise(plan: Plan, flags: Flags) -> tf.Operation:
    bad = _those([str(label) for label in flags.labels], flags.vector)
    # For a bad loss, the message of the CheckNumerics around it: users know it.
    words = tf.constant(['', plan.step.raises[0]], tf.string)
    is_loss = tf.gather(flags.vector, tf.constant(0, tf.int32))
    first = tf.gather(words, tf.cast(is_loss, tf.int32))
    data = [tf.constant(said, tf.string) for said in (NOT_WATCHED, ERROR)]
    data = [first, *data, tf.strings.reduce_join(bad, axis=0, separator='|')]
    data += plan.losses[:1]
    return tf.raw_ops.Assert(condition=tf.constant(False), data=data, summarize=1)


def _print(plan: Plan, flags: Flags, step: GlobalStep, loud: tf.Tensor) -> tf.Operation:
    bad = _first_of([label.name for label in flags.labels], flags.vector)
    step_now = step.read(loud)
    what = "the chief's update" if plan.is_chiefs else 'this step'
    text = ['slimguard: %s wrote nothing' % what]
    if step_now is None:
        text += ['; bad: ', bad]
    else:
        text[0] += ' (global step '
        text += [tf.strings.as_string(step_now), '); bad: ', bad]
    if plan.losses:
        # TensorFlow 1.15 cannot turn 16-bit floats into strings.
        loss = tf.cast(plan.losses[0], tf.float64)
        text += ['; loss ', tf.strings.as_string(loss, shortest=True)]
    if not plan.is_chiefs:
        text.append('; ' + NOT_WATCHED)
    return tf.print(tf.strings.join(text), output_stream=sys.stderr)


def _first_of(names: Sequence[str], flags: tf.Tensor) -> tf.Tensor:
    """A string: the first names whose flag is true, and how many more there are."""
    bad = _those(names, flags)
    more = [' and %d more' % (number + 1) for number in range(len(names) - _MOST_NAMES)]
    rest = tf.constant([''] * (_MOST_NAMES + 1) + more, tf.string)
    told = tf.strings.reduce_join(bad[:_MOST_NAMES], axis=0, separator=', ')
    return tf.strings.join([told, tf.gather(rest, tf.size(bad))])


def _those(words: Sequence[str], flags: tf.Tensor) -> tf.Tensor:
    """The words whose flag is true."""
    words_of_all = tf.constant(list(words), tf.string)
    return tf.gather(words_of_all, tf.squeeze(tf1.where(flags), [1]))
