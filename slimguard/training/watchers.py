"""The watchers among the hooks of a training: which one decides, and what it borrows them for."""

import contextlib
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.incidents.policy_language import OnNan, fallbacks_of
from slimguard.incidents.spike import Spike
from slimguard.training.context import TrainingContext
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.training import DEFAULTS, TrainingSettings


def with_watcher(
    hooks: Sequence[tf1.train.SessionRunHook],
    on_nan: OnNan,
    max_loss: Optional[float],
    logdir: Optional[str] = None,
    settings: TrainingSettings = DEFAULTS,
    spike: Optional[Spike] = None,
) -> Tuple[List[tf1.train.SessionRunHook], GateWatcher]:
    """The hooks, and the one of them that decides: a NanLossHook, or else one that is added.

    No hook is changed: what the training says besides goes to all of them by `lent`. `logdir` is as
    `files.as_logdir` returned it; `settings` are those of one that is added.

    Raises:
      TypeError: if `hooks` is no list of hooks.
      ValueError: if `on_nan`, `max_loss`, `spike` or `logdir` disagrees with a NanLossHook, or is
        nothing we know.
    """
    gates.require_max_loss(max_loss)
    _require_hooks(hooks)
    given = watchers_in(hooks)
    if not given:
        watcher = GateWatcher(on_nan, settings=settings)
        return list(hooks) + [watcher], watcher
    for hook in given:
        if on_nan is not None and list(hook.fallbacks) != fallbacks_of(on_nan):
            _disagree('on_nan', on_nan, hook, list(hook.fallbacks))
        if max_loss is not None and hook.max_loss not in (None, max_loss):
            _disagree('max_loss', max_loss, hook, hook.max_loss)
        if spike is not None and hook.spike not in (None, spike):
            _disagree('spike', spike, hook, hook.spike)
        if logdir is not None and hook.logdir not in (None, logdir):
            _disagree('logdir', logdir, hook, hook.logdir)
    return list(hooks), given[0]


# The methods of every hook, of whatever class.
_METHODS = ('begin', 'after_create_session', 'before_run', 'after_run', 'end')


def _require_hooks(hooks) -> None:
    if not isinstance(hooks, (list, tuple)):
        raise TypeError('hooks must be a list of tf.train.SessionRunHooks, not %r' % (hooks,))
    for hook in hooks:
        if isinstance(hook, type):
            raise TypeError(
                'hooks has the class %s; make a hook of it: %s(...)'
                % (hook.__name__, hook.__name__)
            )
        if not all(callable(getattr(hook, name, None)) for name in _METHODS):
            raise TypeError('hooks must be tf.train.SessionRunHooks; %r is none' % (hook,))


def _disagree(name: str, value, hook: GateWatcher, other) -> None:
    raise ValueError(
        '%s=%r disagrees with the %s among the hooks, which says %r; say it in one place'
        % (name, value, type(hook).__name__, other)
    )


def watchers_in(hooks: Sequence[tf1.train.SessionRunHook]) -> List[GateWatcher]:
    """Those of the hooks that watch gates."""
    return [hook for hook in hooks if isinstance(hook, GateWatcher)]


def tell_in_order(
    hooks: Sequence[tf1.train.SessionRunHook],
    tell: Callable[[Any], None],
    tell_of_failure: Callable[[GateWatcher, str, BaseException], None],
) -> None:
    """Tells hooks of a run that is over, in order, until one raises an error.

    Args:
      hooks: the hooks.
      tell: called with each.
      tell_of_failure: if a hook that is no watcher raises, called for each watcher after it: with
        the watcher, what a record calls the hook's method, and the error. Not called if a watcher
        raises: it has put the incident on record.
    """
    for number, hook in enumerate(hooks):
        try:
            tell(hook)
        except BaseException as error:
            if not isinstance(hook, GateWatcher):
                acting = type(hook).__name__ + '.after_run'
                for later in watchers_in(hooks[number + 1 :]):
                    tell_of_failure(later, acting, error)
            raise


@contextlib.contextmanager
def lent(hooks: Sequence[tf1.train.SessionRunHook], context: TrainingContext) -> Iterator[None]:
    """Lends what a training has to the watchers among its hooks, and takes it back at the end."""
    with contextlib.ExitStack() as stack:
        for hook in watchers_in(hooks):
            stack.enter_context(hook.borrowing(context))
        yield
