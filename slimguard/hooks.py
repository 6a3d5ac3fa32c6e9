"""`NanLossHook`, and TensorFlow's own hook classes.

:class:`NanLossHook` is for every loop that takes `SessionRunHook`s: `slimguard.train`,
`MonitoredTrainingSession`, `tf_slim.training.train`, an Estimator. TensorFlow's own hook classes
are here, too, under the same path on every version of TensorFlow.
"""

from typing import Optional

from slimguard import compat

try:
    import tensorflow as tf
    import tensorflow.compat.v1 as tf1
except ImportError:
    compat.require_tensorflow()  # says what to install
    raise

from slimguard import gate as gates
from slimguard.incidents.policy_language import OnNan, require_policy
from slimguard.incidents.spike import AnySpike
from slimguard.system import files
from slimguard.system.numbers import require_bool
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.stop_signals import SECONDS
from slimguard.training.training import TrainingSettings

SessionRunHook = tf1.train.SessionRunHook
SessionRunArgs = tf1.train.SessionRunArgs
SessionRunContext = tf1.train.SessionRunContext
SessionRunValues = tf1.train.SessionRunValues
NanTensorHook = tf1.train.NanTensorHook
NanLossDuringTrainingError = tf1.train.NanLossDuringTrainingError
StopAtStepHook = tf1.train.StopAtStepHook
FinalOpsHook = tf1.train.FinalOpsHook

__all__ = [
    'FinalOpsHook',
    'NanLossDuringTrainingError',
    'NanLossHook',
    'NanTensorHook',
    'SessionRunArgs',
    'SessionRunContext',
    'SessionRunHook',
    'SessionRunValues',
    'StopAtStepHook',
]


class NanLossHook(GateWatcher, NanTensorHook):
    """Watches the loss and, with a guarded train op, every write; applies the policy to a bad step.

    With a guarded train op (`slimguard.create_train_op`, `slimguard.guard`) a bad step has changed
    nothing when this hook sees it. With any other train op the hook notices a bad loss only after
    the update, as TensorFlow's `NanTensorHook` does; the incident says so. In a run without a train
    op the hook fetches nothing.

    In a session that saves checkpoints, the hook also does what `slimguard.train` does: the saver
    becomes a `FiniteSaver` with its own settings; the training resumes from the newest good
    checkpoint; the last good state is saved before 'raise'; on SIGTERM and Ctrl-C the step under
    way finishes, and the training ends. Histogram summaries leave out values that are not finite.

    Args:
      loss_tensor: the loss, a floating scalar Tensor.
      fail_on_nan_loss: what to do if `on_nan` is not given: True raises, False stops.
      on_nan: 'raise', 'stop', 'skip' or 'rollback'; a policy object; a callable that gets the
        `Incident` and returns any of these, or None to leave it to `fail_on_nan_loss`; or a list of
        these, of which the first that still applies takes the incident.
      max_loss: a larger loss is an incident, too; a positive finite number. Default: no limit.
        `slimguard.guard` says what this limit cannot prevent.
      logdir: the directory for the record of incidents (``slimguard/incidents.jsonl``), in which a
        rollback finds its checkpoints; a str, bytes or `os.PathLike`, made absolute here. Default:
        the logdir of `slimguard.train`, or the directory that the session saves to, if it has a
        `checkpoint_dir` or a `CheckpointSaverHook`; a log line names it. If you pass another
        directory, the hook uses yours, and a warning says so. Without any directory the hook keeps
        no record; the log says so at the first incident.
      ends_job: in a job of several processes, whether the others end, too, when this process raises
        or stops, or when it is the chief and ends.
      capture: whether to keep the values that a bad step drew (its batch, its dropout masks), to
        look for the cause, and, if checkpoints are saved, to write a bundle.
      max_bundles: how many bundles there may be in the directory.
      progress: whether to show a progress bar, if stderr is a terminal, or in a notebook. It needs
        the extra `progress`.
      preemption_seconds: how long the step under way may take to end after SIGTERM or Ctrl-C; see
        `slimguard.train`.
      spike: a `slimguard.Spike`: a step whose loss or gradient norm is far above that of the last
        good steps is an incident, too. True for its defaults. Default: no such limit.
      history: how many of the last steps go into a bundle: their loss, learning rate and gradient
        norms. 0 for none. Default: 200, or the `history` of `slimguard.train`.

    In `slimguard.train`, the hook uses the `capture`, `max_bundles`, `progress` and
    `preemption_seconds` of `train`.

    Raises:
      TypeError, ValueError: for a loss that is no floating scalar, an unknown policy, or a bad
        `max_loss` or `preemption_seconds`; before the first step, also if a policy skips but the
        train op has no gate, or if it rolls back but there is neither a `logdir` nor a directory
        that the session saves to.
      RuntimeError: if the loss is an eager tensor.
    """

    def __init__(
        self,
        loss_tensor: tf.Tensor,
        fail_on_nan_loss: bool = True,
        on_nan: OnNan = None,
        max_loss: Optional[float] = None,
        logdir: Optional[files.Path] = None,
        ends_job: bool = True,
        capture: bool = True,
        max_bundles: int = 5,
        progress: bool = False,
        preemption_seconds: float = SECONDS,
        spike: AnySpike = None,
        history: Optional[int] = None,
    ):
        gates.require_loss(loss_tensor, 'loss_tensor')
        require_bool('fail_on_nan_loss', fail_on_nan_loss)
        require_policy(on_nan)
        NanTensorHook.__init__(self, loss_tensor, fail_on_nan_loss)
        settings = TrainingSettings(
            max_loss=max_loss,
            logdir=logdir,
            ends_job=ends_job,
            capture=capture,
            max_bundles=max_bundles,
            progress=progress,
            preemption_seconds=preemption_seconds,
            spike=spike,
            history=history,
        )
        GateWatcher.__init__(self, on_nan, fail_on_nan_loss, loss_tensor, settings)


# Without this, help() shows the docstring of TensorFlow's NanTensorHook.
NanLossHook.__init__.__doc__ = NanLossHook.__doc__
