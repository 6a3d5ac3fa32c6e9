"""What a train op, its graph and its logdir have to be, or else `train` says what to do."""

import collections.abc
import numbers
from typing import Any, Optional

import tensorflow as tf

from slimguard import gate as gates
from slimguard.graph import TrainOp
from slimguard.system import files
from slimguard.system.log import log
from slimguard.system.numbers import require_bool

BUILD_ANEW = (
    'If a training on it has ended, build the model again, inside "with tf.Graph().as_default():" '
    '(in a notebook, begin the cell that builds it with tf.compat.v1.reset_default_graph()); '
    'train() with the same logdir goes on from its checkpoint.'
)
_FINALIZED = (
    'the graph is finalized. '
    + BUILD_ANEW
    + """
Inside a "with MonitoredTrainingSession(...)" block, train() makes a session of its own: change
    with tf.train.MonitoredTrainingSession(hooks=hooks) as sess:
        ...
        slimguard.train(train_op, logdir, ...)
to
    slimguard.train(train_op, logdir, ..., hooks=hooks)
The hooks go into train(), and the block goes away."""
)


def as_logdir(logdir: Optional[files.Path]) -> Optional[str]:
    """As `files.as_logdir`; None stays None, and an empty path becomes None, with a warning."""
    if isinstance(logdir, (str, bytes)) and not logdir:  # from a flag that was not set, often
        log().warning('logdir is empty, so nothing is saved and nothing recorded.')
        return None
    return None if logdir is None else files.as_logdir(logdir)


def as_train_op(train_op: Any) -> TrainOp:
    """As `gates.as_train_op`; slim raises ValueError for none."""
    if train_op is None and not tf.executing_eagerly():  # whose optimizers return None
        raise ValueError('train_op cannot be None.')
    return gates.as_train_op(train_op)


def require_flags(ends_job: Any, is_chief: Any) -> None:
    """Raises ValueError unless both are bools; `is_chief` may be None, which is False to slim."""
    require_bool('ends_job', ends_job)
    if is_chief is not None:
        require_bool('is_chief', is_chief)


def require_steps(step_fn: Any, step_kwargs: Any, number_of_steps: Any, log_every: Any) -> None:
    """Raises TypeError or ValueError for what slim cannot make the steps of.

    Args:
      step_fn, step_kwargs: `train_step_fn` and `train_step_kwargs`, 0 for slim's own.
      number_of_steps: a number, which numpy's are as well, or None for no end.
      log_every: `log_every_n_steps`, a number; what is not above 0 is never.
    """
    if not callable(step_fn):
        raise TypeError(
            'train_step_fn must be a function of session, train_op, global_step and '
            'train_step_kwargs, as slim.learning.train_step; not %r' % (step_fn,)
        )
    is_slims = isinstance(step_kwargs, int) and step_kwargs == 0
    if not is_slims and not isinstance(step_kwargs, collections.abc.Mapping):
        raise TypeError(
            'train_step_kwargs must be a dictionary, which train_step_fn is given, or be left out '
            "for slim's own; not %r" % (step_kwargs,)
        )
    if number_of_steps is not None:
        what = 'the global step at which to end, or None'
        _require_whole('number_of_steps', number_of_steps, what, is_slims)
        if number_of_steps <= 0:
            raise ValueError(
                'number_of_steps must be above 0, %s for no end; not %r' % (what, number_of_steps)
            )
    if log_every is not None:
        what = 'the number of steps from one line in the log to the next, or 0 for no lines'
        _require_whole('log_every_n_steps', log_every, what, is_slims)


def _require_whole(name: str, value: Any, what: str, is_slims: bool) -> None:
    """Raises ValueError unless it is a whole number; no plain float, where slim makes ops of it."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError('%s must be a number, %s; not %r' % (name, what, value))
    if value % 1 != 0 or (is_slims and type(value) is float):
        raise ValueError('%s must be an int, %s; not %r' % (name, what, value))


def require_parts(global_step: Any, init_fn: Any, summary_writer: Any) -> None:
    """Raises TypeError for what a Supervisor fails with; its mark for its own writer is 0."""
    if global_step is not None and not hasattr(global_step, 'op'):
        raise TypeError(
            "global_step must be the variable that counts steps, or None for the graph's own; "
            'not %r' % (global_step,)
        )
    if init_fn is not None and not callable(init_fn):
        raise TypeError(
            'init_fn must be a function of a session, which is called once that is initialized, '
            'or None; not %r' % (init_fn,)
        )
    is_own = isinstance(summary_writer, int) and summary_writer == 0
    if summary_writer is not None and not is_own and not hasattr(summary_writer, 'add_summary'):
        raise TypeError(
            'summary_writer must be a tf.compat.v1.summary.FileWriter, None for no summaries, or '
            'be left out for one in logdir; not %r' % (summary_writer,)
        )


def require_intervals(save_interval_secs: Any, save_summaries_secs: Any) -> None:
    """Raises TypeError or ValueError unless both are numbers; None and 0 are never."""
    for name, value in (
        ('save_interval_secs', save_interval_secs),
        ('save_summaries_secs', save_summaries_secs),
    ):
        if value is None:
            continue
        if not isinstance(value, numbers.Real):
            raise TypeError(
                '%s must be a number of seconds, or 0 for never; not %r' % (name, value)
            )
        if value != value:
            raise ValueError('%s must be a number of seconds, and is a NaN' % name)


def require_trainable(train_op, graph: tf.Graph, saver: Any = None) -> None:
    """Raises unless `train` can make a session for the train op, and save with the saver if any.

    Raises:
      TypeError: if `saver` is no saver.
      ValueError: if the train op belongs to another graph.
      RuntimeError: if the graph is finalized.
    """
    if train_op.graph is not graph:
        raise ValueError(
            'train op %r belongs to another graph than the one to train; pass graph=... or call '
            'train() inside "with graph.as_default():"' % train_op.name
        )
    if graph.finalized:
        raise RuntimeError(_FINALIZED)
    if not isinstance(saver, (tf.compat.v1.train.Saver, type(None))):
        raise TypeError(
            'saver must be a tf.compat.v1.train.Saver, or None for one of all variables, not %r'
            % (saver,)
        )


def warn_of_no_training(train_op) -> None:
    """Says that nothing is trained; slim takes such an op as well, often a loss by mistake."""
    log().warning(
        'train op %r writes no variable: nothing is trained, and the global step stays '
        'as it is. What trains is what create_train_op() or optimizer.minimize() returns.',
        train_op.name,
    )
