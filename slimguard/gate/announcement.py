"""How a bad step is told: where nobody watches, it prints a line or raises."""

import sys
from typing import Sequence

import tensorflow as tf

from slimguard.gate.flags import Flags
from slimguard.gate.flags_in_words import ERROR
from slimguard.gate.outcome import GlobalStep
from slimguard.gate.plan import Plan
from slimguard.gate.untold import Told, Untold
from slimguard.graph import ops

# So many names are printed: a network has hundreds of gradients, and one NaN reaches them all.
_MOST_NAMES = 3


def announce(
    plan: Plan,
    flags: Flags,
    watched: tf.Tensor,
    untold: Untold,
    undone: tf.Tensor,
    step: GlobalStep,
) -> tf.Tensor:
    """Tells of a bad step, or keeps for the watcher of the session what there is to tell.

    Args:
      plan: the plan of the gate.
      flags: the flags of the step.
      watched: bool scalar, whether not to tell.
      untold: where it is kept, in a session that is watched.
      undone: a token that arrives after a bad step, when all variables are as they were.
      step: reads the global step.

    Returns:
      The token `undone`, afterwards.
    """
    quiet, loud = ops.branch(undone, watched, 'watched')
    kept, fed = ops.branch(quiet, untold.is_watched, 'kept')
    with tf.control_dependencies([kept]):
        loss = plan.losses[0] if plan.losses else None
        putting_aside = untold.keep(Told(flags.vector, step.read(kept), loss))
    with tf.control_dependencies([loud]):
        told = _print(plan, flags, step, loud)
        if plan.step.raises:
            # TensorFlow's error puts a page of its own before what is bad.
            with tf.control_dependencies([told]):
                told = _raise(plan, flags)
    ends = [ops.after([putting_aside], kept, 'put_aside'), fed, ops.after([told], loud, 'told')]
    return ops.merge(ends, 'announced')


def _raise(plan: Plan, flags: Flags) -> tf.Operation:
    bad = _those([str(label) for label in flags.labels], flags.vector)
    # The words users know, where it is the loss.
    first = tf.gather(['', plan.step.raises[0]], tf.cast(flags.vector[0], tf.int32))
    data = [first, tf.constant(ERROR), tf.strings.reduce_join(bad, separator='|')]
    data += plan.losses[:1]
    return tf.raw_ops.Assert(condition=tf.constant(False), data=data, summarize=1)


def _print(plan: Plan, flags: Flags, step: GlobalStep, loud: tf.Tensor) -> tf.Operation:
    bad = _first_of(_those([label.name for label in flags.labels], flags.vector))
    step_now = step.read(loud)
    what = "the chief's update" if plan.is_chiefs else 'this step'
    text = ['slimguard: %s wrote nothing' % what]
    if step_now is not None:
        text += [' (global step ', tf.strings.as_string(step_now), ')']
    text += ['; bad: ', bad]
    if plan.losses:
        # On TensorFlow 1.15 there are no words for 16 bits.
        loss = tf.cast(plan.losses[0], tf.float64)
        text += ['; loss ', tf.strings.as_string(loss, shortest=True)]
    return tf.print(tf.strings.join(text), output_stream=sys.stderr)


def _first_of(names: tf.Tensor) -> tf.Tensor:
    """The first names of a vector in words, and how many more there are."""
    more = tf.size(names) - _MOST_NAMES
    told = tf.strings.join([' and ', tf.strings.as_string(more), ' more'])
    rest = tf.raw_ops.Select(condition=more > 0, x=told, y=tf.constant(''))
    return tf.strings.join([tf.strings.reduce_join(names[:_MOST_NAMES], separator=', '), rest])


def _those(words: Sequence[str], flags: tf.Tensor) -> tf.Tensor:
    """The words whose flag is true. `tf.boolean_mask` builds twenty ops for any shape."""
    return tf.gather(
        tf.constant(words, tf.string), tf.reshape(tf.raw_ops.Where(condition=flags), [-1])
    )
