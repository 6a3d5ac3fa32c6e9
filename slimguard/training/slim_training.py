"""`slimguard.train`: checks its arguments, opens the training, and runs slim's loop in it."""

import contextlib
import functools
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.checkpoints import repair
from slimguard.checkpoints.finite_saver import FiniteSaver, offer_saver
from slimguard.checkpoints.restorers import Restorer
from slimguard.checkpoints.step_turn import taking_turns
from slimguard.cluster.job import is_remote
from slimguard.cluster.rounds import wait_for_initialized
from slimguard.graph import TrainOp
from slimguard.system import files, logdirs
from slimguard.system.log import log
from slimguard.system.numbers import require_bool
from slimguard.training.gate_watcher import GateWatcher, handed
from slimguard.training.slim_loop import SlimLoop, StepRunner
from slimguard.training.step_history import summaries_in
from slimguard.training.training import Training, TrainingSettings

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


def train_with_slim(
    slim_train: Callable[..., Any],
    train_op: TrainOp,
    settings: TrainingSettings,
    hooks: Sequence[tf1.train.SessionRunHook],
    watcher: GateWatcher,
    make_runner: Callable[..., StepRunner],
    default: Any,
    given: Dict[str, Any],
) -> Any:
    """Guards the train op, and runs slim's loop with the hooks. Returns the last good loss.

    Args:
      slim_train: slim's own `train`.
      train_op: the train op.
      settings: the user's settings.
      hooks: the hooks.
      watcher: the hook that decides.
      make_runner: as for `SlimLoop`.
      default: slim's mark for an argument that was not given.
      given: by name, the other arguments for `slim_train`; this function replaces some.
    """
    graph, logdir, is_chief = given['graph'], settings.logdir, given['is_chief']
    if is_chief and logdir is not None:
        logdirs.require_writable(logdir)
    global_step, saver = _step_and_saver(given, logdir)
    # An op that writes nothing needs no guard; slim runs such ops as well.
    if gates.writes_something(train_op):
        train_op = gates.guard(train_op)
    else:
        _warn_of_no_training(train_op)
    if any(isinstance(hook, tf1.train.CheckpointSaverHook) for hook in hooks):
        offer_saver(graph, saver)
    checkpoints = writer = None
    if is_chief and logdir is not None:
        checkpoints = Restorer(saver, logdir, global_step)
        repair.resume_from_good(logdir)
        if given['summary_writer'] == default:
            # As the Supervisor makes it, but with a suffix: a SummarySaverHook's might get its
            # name.
            given['summary_writer'] = tf1.summary.FileWriter(logdir, filename_suffix='.train')
        writer = given['summary_writer']
    training = Training(
        settings,
        is_open=True,
        checkpoints=checkpoints,
        saver=saver,
        number_of_steps=given['number_of_steps'],
        summary_writer=writer,
        summaries=summaries_in(writer, given['save_summaries_secs']),
        is_chief=is_chief,
    )
    training.capture(*gates.gates_of(graph).values())
    before_session = _wait_for_chief(given)
    with taking_turns(graph) as turn, handed(hooks, training), training.running():
        with graph.as_default(), contextlib.ExitStack() as stack:
            for hook in hooks:
                hook.begin()
            summary_op = None
            if checkpoints is not None:
                summary_op = gates.guard_summary(given['summary_op'], train_op, default)
            steps = SlimLoop(
                make_runner,
                given['session_wrapper'],
                hooks,
                watcher,
                train_op,
                training,
                before_session=before_session,
                note_session=functools.partial(
                    _tell_if_complete, given['number_of_steps'], global_step
                ),
                turn=turn,
                summary_op=summary_op,
            )
            given.update(train_step_fn=turn.stepping(steps.step), session_wrapper=steps.wrap)
            if summary_op is not None:
                given['summary_op'] = None
            if checkpoints is not None or gates.ranks_in(graph).end_together:
                stack.enter_context(training.signals)
            before_session()
            loss = slim_train(train_op, logdir, **given)
        steps.raise_swallowed()
        watcher.end_job()
    if checkpoints is not None and saver.failure is not None:
        raise saver.failure  # the Supervisor did not raise the error
    return loss


def _warn_of_no_training(train_op) -> None:
    """Warns that nothing is trained: slim accepts such an op, which is often a loss by mistake."""
    log().warning(
        'train op %r writes no variable: nothing is trained, and the global step stays '
        'as it is. What trains is what create_train_op() or optimizer.minimize() returns.',
        train_op.name,
    )


def _step_and_saver(given: Dict[str, Any], logdir: Optional[str]) -> Tuple[Any, Any]:
    """The global step, and with a logdir a `FiniteSaver` around any saver of the user.

    Makes missing ones here: slim's come too late for the gate, and for the save before an error.
    """
    with given['graph'].as_default():
        if given['global_step'] is None:
            given['global_step'] = tf1.train.get_or_create_global_step()
        if logdir is not None and not isinstance(given['saver'], FiniteSaver):
            given['saver'] = FiniteSaver(given['saver'])
    return given['global_step'], given['saver']


def _wait_for_chief(given: Dict[str, Any]) -> Callable[[], None]:
    """A function that waits for the chief before slim does: slim checks only every 30 s."""
    master = given['master']
    if given['is_chief'] or not is_remote(str(master)):
        return lambda: None
    wait = wait_for_initialized(given['graph'])
    return functools.partial(wait, master, given['session_config'])


def _tell_if_complete(number_of_steps: Optional[int], global_step: Any, session) -> None:
    """Logs, when a session begins, that there is nothing left to train."""
    if number_of_steps is None:
        return
    step = session.run(global_step)
    if step >= number_of_steps:
        log().warning(_COMPLETE, step, number_of_steps)


_COMPLETE = (
    'this training was complete already: its global step is %d, and number_of_steps is '
    "%d. slim's loop runs one more step all the same."
)


# What `train` is given.


def unless_empty(logdir: Optional[files.Path]) -> Optional[files.Path]:
    """The logdir; an empty path, such as an unset flag, becomes None, with a warning."""
    if isinstance(logdir, (str, bytes)) and not logdir:
        log().warning('logdir is empty, so nothing is saved and nothing recorded.')
        return None
    return logdir


def as_train_op(train_op: Any) -> TrainOp:
    """As `gates.as_train_op`; a ValueError for None, as in slim."""
    if train_op is None and not tf.executing_eagerly():  # in eager mode optimizers return None
        raise ValueError('train_op cannot be None.')
    return gates.as_train_op(train_op)


def require_flags(ends_job: Any, is_chief: Any) -> None:
    """Raises ValueError unless both are bools; `is_chief` may be None (False in slim)."""
    require_bool('ends_job', ends_job)
    if is_chief is not None:
        require_bool('is_chief', is_chief)


def require_trainable(train_op, graph: tf.Graph, saver: Any = None) -> None:
    """Raises unless `train` can make a session for the train op, and save with any given saver.

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
