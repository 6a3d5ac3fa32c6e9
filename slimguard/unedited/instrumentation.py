"""For code that is not edited: guards its sessions, and puts guarded functions in slim's place.

Everything that the code then builds and trains is guarded:

    with slimguard.instrument(on_nan='skip'):
        import train_mobilenet            # calls slim.learning.create_train_op and train
        train_mobilenet.main()
"""

import functools
import importlib.machinery
import inspect
import sys
from typing import Any, Callable, Counter, Dict, List, Optional, Tuple

from slimguard import compat, learning
from slimguard import gate as gates
from slimguard.checkpoints.state_file import is_same
from slimguard.diagnosis.evidence import require_capture
from slimguard.gate.arguments import is_made_inside
from slimguard.incidents.policies import Skip
from slimguard.incidents.policy_language import OnNan, fallbacks_of
from slimguard.incidents.spike import AnySpike, as_spike
from slimguard.system import files
from slimguard.system.log import log
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.incident_reading import Reading
from slimguard.training.step_history import STEPS, require_history
from slimguard.training.stop_signals import SECONDS, last_words, require_seconds
from slimguard.training.training import Training, TrainingSettings
from slimguard.training.watchers import handed, watchers_in
from slimguard.unedited import good_checkpoints, numeric_checks
from slimguard.unedited.guarded_sessions import GuardedSessions, ScriptSettings
from slimguard.unedited.patches import Patches
from slimguard.unedited.train_steps import name_of

# Modules with a `create_train_op` and a `train` to replace, and which of the two kinds of `train`
# it is: slim's, around a Supervisor, or that around a MonitoredSession. The last two belong to
# TensorFlow 1.15, which imports them only once somebody asks for tf.contrib.
_MODULES = {
    'tf_slim.learning': 'slim',
    'tf_slim.training.training': 'monitored',
    'tensorflow.contrib.slim.python.slim.learning': 'slim',
    'tensorflow.contrib.training.python.training.training': 'monitored',
}

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
    """Guards every training from here on, in code that knows nothing of slimguard.

    Every update that an optimizer of TensorFlow 1 makes from here on gets a gate when a session
    runs it, in any loop. The policy acts in `Session.run`: it raises `NanLossError` for 'raise',
    and `tf.errors.OutOfRangeError`, as at the end of an input, for 'stop'. 'rollback' restores the
    newest finite checkpoint that the code's own `Saver` wrote, or the state before the first step.
    A `Saver` refuses a save that is not finite, and a `NanTensorHook` leaves a guarded training to
    the policy. The log names, once, each update that cannot be guarded.

    Guarded functions replace `create_train_op` and `train` of `slim.learning`, of
    `tf_slim.training`, and of `tf.contrib` if it exists, both in their modules and in loaded code
    that has imported them by name. Histogram summaries leave out values that are not finite;
    TensorFlow's own raise for them.

    Args:
      on_nan: what happens after a bad step; see `NanLossHook`. Default: raise.
      max_loss: a larger loss is a bad step, too; a positive finite number. Default: no limit.
        `slimguard.guard` says what it can do, and what it cannot.
      logdir: the directory for the record of incidents and the bundles, a str, bytes or
        `os.PathLike`. Default: the directory of the code's checkpoints or summaries; or, if it has
        neither before the first incident, a new folder in `slimguard-logs`.
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
        `preemption_seconds`, `spike` or `history`; if slim is instrumented already with other
        arguments.
    """
    global _active
    gates.require_max_loss(max_loss)
    require_capture(capture, max_bundles)
    require_seconds(preemption_seconds)
    if on_nan is not None:
        fallbacks_of(on_nan)
    logdir = None if logdir is None else files.as_logdir(logdir)
    settings = ScriptSettings(
        on_nan,
        max_loss,
        logdir,
        capture,
        max_bundles,
        preemption_seconds,
        as_spike(spike),
        require_history(history),
    )
    if _active is not None:
        if not _mean_the_same(settings, _active.settings):
            given = _active.settings._asdict().items()
            unusual = [each for each in given if each not in ScriptSettings()._asdict().items()]
            raise ValueError(
                'slim is instrumented already, with %s; to end that, call '
                'slimguard.instrument(%s).uninstrument() first'
                % tuple(', '.join('%s=%r' % each for each in of) for of in (given, unusual))
            )
        return _active
    compat.import_slim()
    _active = Instrumentation(settings)
    return _active


def _mean_the_same(settings: ScriptSettings, other: ScriptSettings) -> bool:
    """Whether they are the same but for the spelling of a policy: 'skip', ['skip'], Skip()."""
    ours, theirs = [
        None if each.on_nan is None else fallbacks_of(each.on_nan) for each in (settings, other)
    ]
    return ours == theirs and settings._replace(on_nan=None) == other._replace(on_nan=None)


def is_active() -> bool:
    """Whether `instrument` was called, and nobody has undone it."""
    return _active is not None


class Instrumentation:
    """What `instrument` did, and how to undo it.

    Attributes:
      settings: the arguments of `instrument`.
      sessions: guards the sessions.
    """

    def __init__(self, settings: ScriptSettings):
        self.settings = settings
        self._replaced: Dict[Callable, Callable] = {}
        slims: Dict[Callable, Callable] = {}
        for name in _MODULES:
            if name in sys.modules:
                slims.update(self._replacements_in(sys.modules[name]))
        self._replace({**slims, **good_checkpoints.replacements(), **numeric_checks.replacements()})
        self._finder = _AfterImport(self._instrument)
        sys.meta_path.insert(0, self._finder)
        self._patches = Patches()
        self.sessions = GuardedSessions(settings)
        self.sessions.install(self._patches)
        log().info(
            'instrumented %s; on_nan=%r, max_loss=%r',
            ', '.join('%s.%s' % (f.__module__, f.__name__) for f in slims),
            settings.on_nan,
            settings.max_loss,
        )

    def uninstrument(self) -> None:
        """Puts the originals back, everywhere. Train ops that were guarded stay guarded."""
        global _active
        if _active is not self:
            return
        sys.meta_path.remove(self._finder)
        self.sessions.release()
        self._patches.undo()
        _replace_everywhere({new: old for old, new in self._replaced.items()})
        _active = None

    def __enter__(self) -> 'Instrumentation':
        return self

    def __exit__(self, *_) -> None:
        self.uninstrument()

    def _instrument(self, module) -> None:
        self._replace(self._replacements_in(module))

    def _replacements_in(self, module) -> Dict[Callable, Callable]:
        """By function of one of _MODULES, its replacement."""
        train = self._train if _MODULES[module.__name__] == 'slim' else self._train_monitored
        return {
            module.create_train_op: self._create_train_op(module.create_train_op),
            module.train: train(module.train),
        }

    def _replace(self, replacements: Dict[Callable, Callable]) -> None:
        _replace_everywhere(replacements)
        self._replaced.update(replacements)

    def _create_train_op(self, original: Callable) -> Callable:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def create_train_op(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            if self._skips_first():
                # The gate checks all the same, and no guarded session lets the check raise. After
                # `uninstrument` the train op stays guarded; there a check that raises would end a
                # plain loop.
                bound.arguments['check_numerics'] = False
            made = original(*bound.args, **bound.kwargs)
            # A session guards the op that runs a loop or function.
            return made if is_made_inside(made) else learning.guard_new(made)

        return create_train_op

    def _train(self, original: Callable) -> Callable:
        @functools.wraps(original)
        def train(*args, **kwargs):
            logdir = _logdir_of(*args, **kwargs)
            if not logdir and 'hooks' not in kwargs:
                # It saves nothing. The guarded sessions guard it, and keep a record all the same.
                return original(*args, **kwargs)
            self._warn_of_another(logdir)
            directory = files.as_logdir(logdir) if logdir else ''  # the code may use `chdir`
            kwargs = dict(self._defaults(kwargs), **kwargs)
            watcher = _watcher_in(kwargs)
            noted = watcher, watcher.actions(), directory, *args
            note = functools.partial(self._note_training, *noted, **kwargs)
            last_words.insert(0, note)  # SIGTERM ends the process inside of the loop
            try:
                return learning.train(*args, **kwargs)
            finally:
                last_words.remove(note)
                note()

        return train

    def _warn_of_another(self, logdir: Optional[files.Path]) -> None:
        asked = self.settings.logdir
        if asked is not None and logdir and not is_same(asked, files.as_logdir(logdir)):
            log().warning(
                '%s is to have the record, but slim.learning.train has a logdir, %s: '
                'record and bundles of this training go there.',
                asked,
                logdir,
            )

    def _note_training(
        self, watcher: GateWatcher, before: Counter[str], directory: str, train_op, *_, **__
    ) -> None:
        """Notes a training, and the actions on its incidents."""
        seen = self.sessions.seen
        steps = watcher.steps if isinstance(watcher, _CountingWatcher) else 0
        seen.note_steps(name_of(gates.as_train_op(train_op)), steps)
        rates = [it.learning_rate for it in watcher.incidents if it.learning_rate is not None]
        for action, times in (watcher.actions() - before).items():
            seen.note_incidents(action, directory, times, rates[-1] if rates else None)

    def _train_monitored(self, original: Callable) -> Callable:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def train(*args, **kwargs):
            arguments = signature.bind(*args, **kwargs).arguments
            hooks = arguments.get('hooks') or ()
            logdir = arguments.get('logdir')
            logdir = files.as_logdir(logdir) if logdir else None
            if gates.writes_something(arguments['train_op']):
                arguments['train_op'] = gates.guard(arguments['train_op'])
            # A NanLossHook of the code's own watches; else the guarded session does.
            asked = self.settings
            said = TrainingSettings(
                asked.max_loss, logdir, spike=asked.spike, history=asked.history
            )
            with handed(hooks, Training(said)):
                return original(**arguments)

        return train

    def _defaults(self, kwargs: Dict[str, Any]) -> Dict[str, Any]:
        """Defaults for a `train` of the code; with a policy, unless a hook of the code has one."""
        defaults: Dict[str, Any] = {
            'capture': self.settings.capture,
            'max_bundles': self.settings.max_bundles,
            'preemption_seconds': self.settings.preemption_seconds,
            'history': self.settings.history,
        }
        if not watchers_in(kwargs.get('hooks') or ()):
            defaults.update(
                on_nan=self.settings.on_nan,
                max_loss=self.settings.max_loss,
                spike=self.settings.spike,
            )
        return defaults

    def _skips_first(self) -> bool:
        on_nan = self.settings.on_nan
        return on_nan is not None and isinstance(fallbacks_of(on_nan)[0], Skip)


class _CountingWatcher(GateWatcher):
    """Counts the steps of one training, the bad ones among them, in `steps`."""

    steps = 0

    def step_was_good(self, session, loss: Any) -> None:
        self.steps += 1
        GateWatcher.step_was_good(self, session, loss)

    def handle(self, run_context, reading: Reading, *beside: Reading) -> None:
        self.steps += 1
        GateWatcher.handle(self, run_context, reading, *beside)


def _logdir_of(train_op, logdir=None, *_, **__) -> Optional[files.Path]:
    return logdir


def _watcher_in(kwargs: Dict[str, Any]) -> GateWatcher:
    """The watcher among the hooks of a training, as `with_watcher` picks it; else a new one."""
    hooks = list(kwargs.get('hooks') or ())
    watchers = watchers_in(hooks)
    if not watchers:
        watchers = [_CountingWatcher(kwargs.pop('on_nan', None))]
        kwargs['hooks'] = hooks + watchers
    return watchers[0]


def loaded_modules() -> List[Tuple[str, Any]]:
    """A copy of all loaded modules, by name: running code imports more."""
    return list(sys.modules.items())


def _replace_everywhere(replacements: Dict[Callable, Callable]) -> None:
    """Replaces functions in every module that has them: where defined, and where imported.

    slimguard's own modules keep the originals, which they call.

    Args:
      replacements: by function, its replacement. One walk looks for all of them, by identity: there
        are thousands of modules, and their contents need not be hashable.
    """
    by_id = {id(old): new for old, new in replacements.items()}
    for name, module in loaded_modules():
        if name.partition('.')[0] == 'slimguard':
            continue
        names = getattr(module, '__dict__', {})
        if by_id.keys().isdisjoint(map(id, list(names.values()))):
            continue  # nearly all of them, told in C
        for attribute, value in list(names.items()):
            if id(value) in by_id:
                setattr(module, attribute, by_id[id(value)])


class _AfterImport:
    """A finder for `sys.meta_path` that calls `instrument` with each of _MODULES once loaded."""

    def __init__(self, instrument: Callable):
        self._instrument = instrument

    def find_spec(self, name, path=None, target=None):
        if name not in _MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            loader: Any = spec.loader  # of this module alone
            load = loader.exec_module

            def exec_module(module):
                load(module)
                self._instrument(module)

            loader.exec_module = exec_module
        return spec
