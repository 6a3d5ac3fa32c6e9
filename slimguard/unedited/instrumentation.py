"""`instrument`: guards code that is not edited.

It guards everything that the code then builds and trains:

    with slimguard.instrument(on_nan='skip'):
        import train_mobilenet            # calls slim.learning.create_train_op and train
        train_mobilenet.main()
"""

from typing import Optional

from slimguard.incidents.policy_language import OnNan, fallbacks_of, require_policy
from slimguard.incidents.spike import AnySpike
from slimguard.system import files
from slimguard.system.log import log
from slimguard.training.step_history import STEPS, require_history
from slimguard.training.stop_signals import SECONDS
from slimguard.training.training import TrainingSettings
from slimguard.unedited.patched_sessions import PatchedSessions
from slimguard.unedited.patches import Patches

_active: Optional['Instrumentation'] = None


def instrument(
    on_nan: OnNan = None,
    max_loss: Optional[float] = None,
    logdir: Optional[files.Path] = None,
    capture: bool = True,
    max_bundles: int = 5,
    preemption_seconds: float = SECONDS,
    spike: AnySpike = None,
    history: int = STEPS,
) -> 'Instrumentation':
    """Guards every training from here on, in code that does not use slimguard.

    Each update that a session runs is checked before it is written, in any loop, including
    `slim.learning.train`. After a bad step the policy acts:

    * 'raise': `Session.run` raises `NanLossError`.
    * 'stop': `Session.run` raises `tf.errors.OutOfRangeError`, as at the end of an input.
    * 'skip': `Session.run` returns the values of the bad step, whose update was not applied.
    * 'rollback': restores a snapshot, or the newest finite checkpoint that the code's own `Saver`
      wrote, or the state before the first step.

    A `Saver` refuses a save that is not finite, a `NanTensorHook` leaves a guarded training to the
    policy, and histogram summaries leave out values that are not finite. The log names once each
    update that cannot be guarded.

    Args:
      on_nan: what happens after a bad step; see `NanLossHook`. Default: raise.
      max_loss: a larger loss is a bad step, too; a positive finite number. Default: no limit.
        `slimguard.guard` says what this limit cannot prevent.
      logdir: the directory for the record of incidents and the bundles, a str, bytes or
        `os.PathLike`. Default: the directory of the code's checkpoints or summaries; if the code
        has written neither before the first incident, a new folder in `slimguard-logs`.
      capture: whether to keep the values that a bad step drew, to look for the cause, and to write
        a bundle, as `train` does.
      max_bundles: how many bundles there may be in one folder.
      preemption_seconds: how long a step may take to end after SIGTERM or Ctrl-C, as for `train`.
      spike, history: as for `train`.

    Returns:
      The `Instrumentation`: a context manager, with `uninstrument()`. Calling this again with the
      same arguments returns the same.

    Raises:
      ValueError, TypeError: for an unknown policy, a bad `max_loss`, `logdir`, `max_bundles`,
        `preemption_seconds`, `spike` or `history`; if `instrument` is in force already with other
        arguments.
    """
    global _active
    require_policy(on_nan)
    fallbacks = None if on_nan is None else fallbacks_of(on_nan)
    settings = TrainingSettings(
        max_loss=max_loss,
        logdir=logdir,
        ends_job=False,
        capture=capture,
        max_bundles=max_bundles,
        preemption_seconds=preemption_seconds,
        spike=spike,
        history=require_history(history),
    ).require()
    if _active is None:
        _active = Instrumentation(on_nan, settings)
    elif (fallbacks, settings) != (_active.fallbacks, _active.settings):
        given = {'on_nan': _active.on_nan, **_active.settings._asdict()}
        usual = {'on_nan': None, **_USUAL._asdict()}
        arguments = ', '.join('%s=%r' % each for each in given.items() if each not in usual.items())
        raise ValueError(
            'instrument is in force already, with other arguments; to end that, call '
            'slimguard.instrument(%s).uninstrument() first' % arguments
        )
    return _active


_USUAL = TrainingSettings(ends_job=False, history=STEPS)


def is_active() -> bool:
    """Whether `instrument` is in force."""
    return _active is not None


class Instrumentation:
    """What `instrument` did, and how to undo it.

    Attributes:
      on_nan, settings: the arguments of `instrument`.
      fallbacks: `on_nan` as policies; None for the default.
      sessions: guards the sessions.
    """

    def __init__(self, on_nan: OnNan, settings: TrainingSettings):
        self.on_nan, self.settings = on_nan, settings
        self.fallbacks = None if on_nan is None else fallbacks_of(on_nan)
        self._patches = Patches()
        self.sessions = PatchedSessions(on_nan, settings)
        self.sessions.install(self._patches)
        log().info('sessions are guarded; on_nan=%r, max_loss=%r', on_nan, settings.max_loss)

    def uninstrument(self) -> None:
        """Restores TensorFlow's methods and the signal handlers."""
        global _active
        if _active is not self:
            return
        self.sessions.release()
        self._patches.undo()
        _active = None

    def __enter__(self) -> 'Instrumentation':
        return self

    def __exit__(self, *_) -> None:
        self.uninstrument()
