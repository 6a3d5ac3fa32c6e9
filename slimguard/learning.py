"""`slim.learning`, guarded: :func:`create_train_op` and :func:`train` in place of slim's.

Every other name of the installed `slim.learning` is also here, unchanged, so that
``from slimguard import learning`` replaces it.
"""

import functools
from typing import Any, Optional, Sequence, cast

from slimguard import compat

try:
    import tensorflow as tf
    import tensorflow.compat.v1 as tf1
except ImportError:
    compat.require_tensorflow()  # says what to install
    raise

from slimguard import gate as gates
from slimguard.gate.histograms import leave_out_bad_values
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.incidents.policy_language import OnNan, require_policy
from slimguard.incidents.spike import AnySpike
from slimguard.system import files
from slimguard.training import slim_training
from slimguard.training.gate_watcher import with_watcher
from slimguard.training.slim_loop import Schedule, StepRunner
from slimguard.training.step_history import STEPS, require_history
from slimguard.training.stop_signals import SECONDS
from slimguard.training.training import TrainingSettings

_slim = compat.import_slim().learning
# Taken at import: users may later replace the functions of `_slim` by those below.
_slim_create_train_op = _slim.create_train_op
_slim_train = _slim.train

# slim's own marks for "not given"; its functions compare with these.
_USE_GLOBAL_STEP, _USE_DEFAULT = compat.marks_of(_slim)

__all__ = list(_slim.__all__)


def __getattr__(name):
    return getattr(_slim, name)


globals().update(
    {name: getattr(_slim, name) for name in __all__ if name not in ('create_train_op', 'train')}
)


def create_train_op(
    total_loss: tf.Tensor,
    optimizer: tf1.train.Optimizer,
    global_step=_USE_GLOBAL_STEP,
    update_ops=None,
    variables_to_train=None,
    clip_gradient_norm=0,
    summarize_gradients=False,
    gate_gradients=tf1.train.Optimizer.GATE_OP,
    aggregation_method=None,
    colocate_gradients_with_ops=False,
    gradient_multipliers=None,
    check_numerics=True,
) -> tf.Tensor:
    """Creates a train op as `slim.learning.create_train_op` does, and guards it.

    A step whose loss, gradients or moving averages are not finite writes nothing: see
    `slimguard.guard`. A `NanLossHook` or `slimguard.train` then applies its policy. Without
    either, the step raises `tf.errors.InvalidArgumentError` if ``check_numerics=True``; else it
    prints one line.

    Args:
      total_loss: the loss, a floating scalar Tensor.
      optimizer: a `tf.compat.v1.train.Optimizer`.
      global_step: the global step variable. By default the graph's own; None for no step.
      update_ops: update ops to run. By default those in the UPDATE_OPS collection.
      variables_to_train: by default `tf.compat.v1.trainable_variables()`.
      clip_gradient_norm: if positive, each gradient is clipped to this L2 norm.
      summarize_gradients: whether to add a summary for each gradient. Histograms leave out values
        that are not finite.
      gate_gradients: how to gate the computation of gradients, see `tf.compat.v1.train.Optimizer`.
      aggregation_method: how to combine gradient terms, see `tf.AggregationMethod`.
      colocate_gradients_with_ops: whether gradients are computed where the ops are.
      gradient_multipliers: a dictionary from variables, or names of variable ops, to factors for
        their gradients.
      check_numerics: whether a bad step raises if no hook and no `slimguard.train` watches it.

    Returns:
      A Tensor that, when evaluated, applies the gradients and returns the loss.

    Raises:
      TypeError, ValueError: if `total_loss` is no floating scalar Tensor or `optimizer` is not one
        of TensorFlow 1; whatever slim raises for its other arguments.
      RuntimeError: in eager mode; if the graph is finalized, as it is after `train`.
    """
    gates.require_loss(total_loss, 'total_loss')
    gates.require_optimizer(optimizer)
    if total_loss.graph.finalized:
        raise RuntimeError(
            'the graph is finalized, so no train op can be added for total_loss %r. %s'
            % (total_loss.name, slim_training.BUILD_ANEW)
        )
    train_op = _slim_create_train_op(
        total_loss,
        optimizer,
        global_step=global_step,
        update_ops=update_ops,
        variables_to_train=variables_to_train,
        clip_gradient_norm=clip_gradient_norm,
        summarize_gradients=summarize_gradients,
        gate_gradients=gate_gradients,
        aggregation_method=aggregation_method,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
        gradient_multipliers=gradient_multipliers,
        check_numerics=check_numerics,
    )
    guarded = cast(tf.Tensor, gates.guard(train_op))  # guarding a Tensor gives a Tensor
    leave_out_bad_values(guarded.graph)
    return guarded


@with_short_traceback
def train(
    train_op,
    logdir: Optional[files.Path],
    train_step_fn=_slim.train_step,
    train_step_kwargs=_USE_DEFAULT,
    log_every_n_steps=1,
    graph=None,
    master='',
    is_chief=True,
    global_step=None,
    number_of_steps=None,
    init_op=_USE_DEFAULT,
    init_feed_dict=None,
    local_init_op=_USE_DEFAULT,
    init_fn=None,
    ready_op=_USE_DEFAULT,
    summary_op=_USE_DEFAULT,
    save_summaries_secs=600,
    summary_writer=_USE_DEFAULT,
    startup_delay_steps=0,
    saver=None,
    save_interval_secs=600,
    sync_optimizer=None,
    session_config=None,
    session_wrapper=None,
    trace_every_n_steps=None,
    ignore_live_threads=False,
    hooks: Optional[Sequence[tf1.train.SessionRunHook]] = None,
    on_nan: OnNan = None,
    max_loss: Optional[float] = None,
    progress: bool = False,
    capture: bool = True,
    max_bundles: int = 5,
    ends_job: bool = True,
    preemption_seconds: float = SECONDS,
    spike: AnySpike = None,
    history: int = STEPS,
) -> Any:
    """Trains as `slim.learning.train` does, with hooks, and with a policy for bad steps.

    All arguments up to `ignore_live_threads` are those of the installed `slim.learning.train`,
    which runs the loop. A train op that is not guarded is guarded first.

    * Bad steps are recorded in ``logdir/slimguard/incidents.jsonl``, and in the summaries.
    * Checkpoints go through a `FiniteSaver`, even if you give a `saver`. If the newest checkpoint
      is damaged or not finite, training resumes from the newest good one, and the log says so.
    * On SIGTERM or Ctrl-C the step under way finishes and the state is saved; then the process
      ends, or KeyboardInterrupt is raised. It waits for the step no longer than
      `preemption_seconds`, and not at all after a second Ctrl-C. At a prompt or in a notebook,
      Ctrl-C never ends the process.
    * Histogram summaries leave out values that are not finite; in plain TensorFlow these would end
      the training.
    * The processes of a job tell each other of incidents: 'raise' and 'stop' in one process end
      all, and a rollback takes all back to the newest finite checkpoint. If a process fails for a
      while (`AbortedError`, `UnavailableError`), the others begin a new session.

    Args:
      train_op: a Tensor that applies the gradients and returns the loss, from `create_train_op`,
        or any other train op (see `slimguard.guard`).
      logdir: the directory for checkpoints and summaries: a str, bytes or `os.PathLike`, or a URL
        of a file system that `tf.io.gfile` knows. A relative path is made absolute here, so a later
        `os.chdir` changes nothing. None to write none.
      hooks: `SessionRunHook`s, called once for each step. A `NanLossHook` among them decides what
        happens after a bad step.
      on_nan: what happens after a bad step, unless a `NanLossHook` decides: 'raise' (the default),
        'stop', 'skip', 'rollback', a policy object, a callable, or a list of these; see
        `NanLossHook`.
      max_loss: a larger loss is a bad step, too; a positive finite number. Default: no limit.
        `slimguard.guard` says what this limit cannot prevent.
      progress: whether to show a progress bar, if stderr is a terminal, or in a notebook. It needs
        the extra `progress`.
      capture: whether to keep the values that a bad step drew (its batch, its dropout masks), to
        look for the cause, and, in the chief, to write a bundle into ``logdir/slimguard``, if the
        next checkpoint fits on the disk beside it. It hardly slows down good steps.
      max_bundles: how many bundles there may be in `logdir`.
      ends_job: in a job of several processes, whether the others end, too, when this process raises
        or stops, or when it is the chief and ends.
      preemption_seconds: how long the step under way may take to end after SIGTERM or Ctrl-C.
        Choose less time than the sender of the signal gives the process.
      spike: a `slimguard.Spike`: a step whose loss or gradient norm is far above that of the last
        good steps is a bad step, too, and writes nothing. True for its defaults. Default: none.
      history: how many of the last steps go into a bundle: their loss, learning rate and gradient
        norms. 0 for none.
      **: the documentation of `slim.learning.train` explains the others.

    Returns:
      The loss of the last good step, or NaN if there was none.

    Raises:
      NanLossError: where the policy is 'raise', once the last good state is saved in `logdir`
        (by the chief). `tf.compat.v1.train.NanLossDuringTrainingError` and
        `tf.errors.InvalidArgumentError` catch it as well.
      TypeError, ValueError: as `slim.learning.train`; if an argument has a bad value, or disagrees
        with a hook; if the train op cannot be guarded or belongs to another graph; if `logdir` is
        no directory, or the chief may not write to it, or it holds a wild card, since TensorFlow
        could not restore a checkpoint from there.
      ImportError: if `progress` is True and tqdm is not installed.
      RuntimeError: in eager mode; if the graph is finalized, as it is after another `train` and
        inside a ``with MonitoredTrainingSession(...)`` block.
      tf.errors.OpError: if the last checkpoint could not be written, as on a full disk.
    """
    require_policy(on_nan)
    settings = TrainingSettings(
        max_loss=max_loss,
        logdir=slim_training.unless_empty(logdir),
        ends_job=ends_job,
        capture=capture,
        max_bundles=max_bundles,
        progress=progress,
        preemption_seconds=preemption_seconds,
        spike=spike,
        history=require_history(history),
    ).require()
    slim_training.require_flags(ends_job, is_chief)
    graph = graph or tf1.get_default_graph()
    train_op = slim_training.as_train_op(train_op)
    slim_training.require_trainable(train_op, graph, saver)
    hooks, watcher = with_watcher(hooks or (), on_nan, settings)
    # Only slim's own step function with its own arguments can be replaced by a faster one.
    schedule = None
    if train_step_fn is _slim.train_step and train_step_kwargs == _USE_DEFAULT:
        schedule = Schedule(number_of_steps, log_every_n_steps, trace_every_n_steps)
    make_runner = functools.partial(StepRunner, train_step_fn, schedule)
    given = dict(
        train_step_kwargs=train_step_kwargs,
        log_every_n_steps=log_every_n_steps or 0,
        graph=graph,
        master=master,
        is_chief=is_chief,
        global_step=global_step,
        number_of_steps=number_of_steps,
        init_op=init_op,
        init_feed_dict=init_feed_dict,
        local_init_op=local_init_op,
        init_fn=init_fn,
        ready_op=ready_op,
        summary_op=summary_op,
        save_summaries_secs=save_summaries_secs,
        summary_writer=summary_writer,
        startup_delay_steps=startup_delay_steps,
        saver=saver,
        save_interval_secs=save_interval_secs,
        sync_optimizer=sync_optimizer,
        session_config=session_config,
        session_wrapper=session_wrapper,
        trace_every_n_steps=trace_every_n_steps,
        ignore_live_threads=ignore_live_threads,
    )
    return slim_training.train_with_slim(
        _slim_train, train_op, settings, hooks, watcher, make_runner, _USE_DEFAULT, given
    )
