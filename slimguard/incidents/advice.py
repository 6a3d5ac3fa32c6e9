"""Advice after an incident, for the error, the record and the page. Imports no TensorFlow."""

from typing import Optional, Sequence

from slimguard.incidents.incident import Incident
from slimguard.system import texts

# How a diagnosis says that the training exploded, so that the overflowing op is not at fault.
LARGE_WEIGHTS = 'The weights are as large as'
# The cures for steps that are too large, and what else may help if the incident has no advice.
_FOR_A_JUMP = 'Keep the learning rate as it was, or let it grow in small steps.'
_FOR_GROWTH = 'If one step made the loss grow, look at the batch of that step.'
_FOR_A_LIMIT = 'Look at the batch of this step. If its loss is as it should be, raise the limit.'
_SLOWER = 'Else train with a smaller learning rate, or clip the gradients.'
_HOLDS = 'spike=True holds a step whose loss or gradient norm jumps, before it is written.'
_GOES_BACK = "on_nan='rollback' goes back to earlier weights."
_MORE = {
    _FOR_A_JUMP: (_HOLDS, _GOES_BACK),
    _FOR_GROWTH: (_SLOWER, _HOLDS, _GOES_BACK),
    _FOR_A_LIMIT: (_SLOWER,),
}
_KEEP_ABOVE_0 = 'Keep the input above 0: tf.%s(tf.maximum(x, 1e-7)%s).'
_LOG_ABOVE_0 = _KEEP_ABOVE_0 % ('math.log', '') + (
    ' If x is a sum of exponentials or densities, take tf.reduce_logsumexp of their logarithms.'
)
_PUT_A_NUMBER = 'Put a large finite number, such as 1e9, in place of the Inf.'
# The cures, by words of a diagnosis; the first match counts.
BY_CAUSE = {
    'the learning rate went from': _FOR_A_JUMP,
    'the loss went from': _FOR_GROWTH,
    'the gradient norm went from': _FOR_GROWTH,
    LARGE_WEIGHTS: _FOR_GROWTH,
    'bad data: ': 'Find the rows in your data: np.argwhere(~np.isfinite(data)). Drop them, in '
    'tf.data by dataset.filter(lambda x: tf.reduce_all(tf.math.is_finite(x))), or train on the '
    'good values: tf.where(tf.math.is_finite(x), x, tf.zeros_like(x)).',
    'comes from a Softmax': 'The logarithm is taken of what a Softmax returned: take '
    'tf.nn.log_softmax of its input, or for a cross entropy with labels '
    'tf.nn.softmax_cross_entropy_with_logits.',
    'comes from a Sigmoid': 'The logarithm is taken of what a Sigmoid returned: take '
    'tf.math.log_sigmoid of its input, or for a cross entropy with labels '
    'tf.nn.sigmoid_cross_entropy_with_logits.',
    'epsilon is 0 in float16': 'Pass the optimizer a larger epsilon, such as 1e-4.',
    'beta1 is 1 in ': 'Pass the optimizer a smaller beta1, such as 0.9.',
    'but its square is not': 'Clip the numbers of the gradient: tf.clip_by_value(g, -1e3, 1e3). A '
    'norm of the gradients squares them, too, and would overflow.',
    'rsqrt of 0': _KEEP_ABOVE_0 % ('math.rsqrt', '') + ' If x counts steps, count from 1.',
    'rsqrt of a negative number': _KEEP_ABOVE_0 % ('math.rsqrt', ''),
    'gradient of sqrt at 0': 'Add a small number below the root, as the slope is infinite at 0: '
    'tf.sqrt(x + 1e-12). A norm is tf.sqrt(tf.reduce_sum(tf.square(x), axis=1) + 1e-12).',
    'sqrt of a negative number': 'Keep the input above 0: tf.sqrt(tf.maximum(x, 1e-7)). Take a '
    'variance by tf.nn.moments: the mean of squares less the square of the mean may be negative.',
    'log of 0': _LOG_ABOVE_0,
    'log of a negative number': _KEEP_ABOVE_0 % ('math.log', ''),
    'gradient of log at 0': _LOG_ABOVE_0,
    'log1p ': 'Keep the input above -1: tf.math.log1p(tf.maximum(x, -0.999)).',
    '0 to a negative power': _KEEP_ABOVE_0 % ('pow', ', y'),
    'gradient of pow at 0': _KEEP_ABOVE_0 % ('pow', ', y'),
    'a fractional exponent': _KEEP_ABOVE_0 % ('pow', ', y'),
    'division by 0': 'Divide with tf.math.divide_no_nan(x, y), which is 0 where y is 0. If y is a '
    'scale that the model learns, keep it away from 0 instead: tf.nn.softplus(y) + 1e-3.',
    'nothing but -Inf': 'Mask with a large finite number, such as -1e9, in place of -Inf.',
    'a class whose logit is -Inf': 'The mask hides the class of the label: look at both. With a '
    'large finite number, such as -1e9, in place of -Inf, the loss would be large, but finite.',
    'a label that is no class': 'Look at the labels of these rows; classes count from 0. If the '
    'labels are right, give the layer of the logits more outputs.',
    '0 times Inf': _PUT_A_NUMBER,
    'Inf less Inf': _PUT_A_NUMBER,
    'Inf divided by Inf': _PUT_A_NUMBER,
    'made NaN from an Inf': _PUT_A_NUMBER,
    'in a constant: ': 'Look at the line that makes the constant. Class weights such as '
    'total / counts are Inf for a class with a count of 0: take total / np.maximum(counts, 1).',
    'CTC label that does not fit': 'Leave the sample out of the input, or use a smaller stride to '
    'keep more frames.',
    'mean of an empty tensor': 'Divide the sum by tf.maximum(count, 1.0).',
    'smallest of an empty tensor': 'Look at the ops that select its elements: they left none.',
    'not finite: it was given as': 'Look at the code that computes this value.',
    'overflow of exp': 'Keep the input small: tf.exp(tf.minimum(x, 20.0)).',
    'division by as little as': 'Keep the divisor away from 0: tf.maximum(y, 1e-7), if it is never '
    'negative.',
    'overflow of ': 'Look at the inputs of this op. If they are as large as they should be, scale '
    'them down, or compute with a wider dtype.',
    ' returned ': 'Look at the function, or at the other process, that returned it.',
    'cannot be looked into': 'Look inside it for an op that can make NaN or Inf, such as a '
    'division, a root or a logarithm.',
    'and everything is finite': _FOR_A_LIMIT,
}
# The cures for all other causes, by the phase of the diagnosis.
BY_PHASE = {
    'in the forward pass: ': 'Keep the input of this op where its result is finite: a small '
    'epsilon, a clip, or a tf.where around the input (around the result alone it does not help the '
    'gradient).',
    'in the backward pass: ': 'Keep the input of the forward op away from the point where its '
    'slope is infinite: add a small epsilon to the input.',
    'in the update: ': 'If its inputs are large, train with a smaller learning rate, or clip the '
    "gradients; else look at the optimizer's arguments.",
    'in a variable: ': 'Find the code that wrote this variable: an update beside the train op, or '
    'a restore. Rollback goes back to a state before it, if there is one.',
}


def for_cause(cause: str, is_advised: bool = False) -> str:
    """The cure for a cause, as a diagnosis names it; '' if none is known.

    Args:
      cause: the first lines of the diagnosis.
      is_advised: whether the incident has its own advice, which says more than a phase's.
    """
    cures = BY_CAUSE if is_advised else {**BY_CAUSE, **BY_PHASE}
    return next((cure for words, cure in cures.items() if words in cause), '')


def what_to_do(incident: Incident) -> str:
    """Sentences on what may help: the cure for the cause, and what policies can do; '' if none."""
    cure = for_cause(incident.cause, bool(incident.advice))
    more = (incident.advice,) if incident.advice else _MORE.get(cure, ())
    if cure in (_FOR_A_JUMP, _FOR_GROWTH):
        more = (_cure_of_the_op(incident), *more)
    is_held, is_back = is_spike(incident.reason), incident.action == 'rollback'
    left_out = (_HOLDS if is_held else None, _GOES_BACK if is_back else None)
    return ' '.join(each for each in (cure, *more) if each and each not in left_out)


def _cure_of_the_op(incident: Incident) -> str:
    """After an explosion: the cure for the op, unless it overflowed, as the explosion makes it."""
    of_op = (incident.diagnosis or '').partition('\n')[2].partition('\n')[0]
    cure = '' if 'overflow' in of_op else for_cause(of_op, is_advised=True)
    return '' if cure in _MORE else cure


def is_spike(reason: str) -> bool:
    """Whether the reason of an incident says that the step was held as a spike."""
    return 'times the median' in reason


def for_an_explosion(factor: Optional[float], reason: str = '', is_known: bool = False) -> str:
    """Advice for a training that used up its rollbacks, or whose loss was above max_loss.

    Args:
      factor: the factor of the learning rate after each rollback, as the policy has it, or None.
      reason: the incident's reason; if it says that the step was held as a spike, the advice does
        not suggest `spike`.
      is_known: whether the last steps show an explosion.
    """
    policy = 'rollback:3x%.1g' % (0.1 if factor is None else factor / 3)
    smaller = 'a smaller learning rate'
    if factor is not None:
        smaller += ', by a smaller factor than %g' % factor
    hold = 'hold what jumps before it is written (spike=True, or --spike=default), '
    return (
        '%so back and go on with %s (on_nan=%r, or --on_nan=%s), %s'
        'train with a smaller learning rate from the start, or clip the gradients.'
        % (
            'G' if is_known else 'If this training explodes, g',
            smaller,
            policy,
            policy,
            '' if is_spike(reason) else hold,
        )
    )


def for_lost_state(rolls_back: bool) -> str:
    """Advice for a step that began with variables that were not finite.

    Args:
      rolls_back: whether a policy in use rolls back.
    """
    told = (
        'The write that made it so was not guarded, and its line is not known: a load or an '
        'assign, an update that was run alone or beside the train op, or a restore. To guard an '
        'update, make it part of the train op: slimguard.guard(tf.group(train_op, update)). After '
        'a restore, "python -m slimguard checkpoints LOGDIR" names the bad variables of each '
        'checkpoint.'
    )
    if not rolls_back:
        told += " on_nan='rollback' goes back to a state before it, if there is one."
    return told


def for_a_refused_save(unguarded: Sequence[str]) -> str:
    """Advice for a save that was refused because of variables that no guarded train op writes.

    Args:
      unguarded: their names.
    """
    return (
        'No guarded train op writes %s: guard what does, set it to a finite number, or leave it '
        'out of the saver.' % texts.listed(unguarded, 5)
    )


def for_a_bad_batch(skips: bool) -> str:
    """Advice for a step that failed because of its batch, although the weights are good.

    Args:
      skips: whether a policy in use skips.
    """
    told = 'The cause is in the batch, and not in the weights: a rollback does not help'
    skip = "; on_nan='skip', or --on_nan=skip, leaves out such a batch"
    return told + ('' if skips else skip) + '.'
