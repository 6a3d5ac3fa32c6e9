"""The watchers among the hooks of a training: which one decides, and of what training."""

import contextlib
from typing import Iterator, List, Sequence, Tuple

import tensorflow.compat.v1 as tf1

from slimguard.incidents.policy_language import OnNan, fallbacks_of
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.training import Training, TrainingSettings


def with_watcher(
    hooks: Sequence[tf1.train.SessionRunHook],
    on_nan: OnNan,
    settings: TrainingSettings,
) -> Tuple[List[tf1.train.SessionRunHook], GateWatcher]:
    """The hooks, and the one that decides: a NanLossHook among them, or else an added one.

    No hook is changed: `handed` gives the other settings of the training to all of them.

    Raises:
      TypeError: if `hooks` is no list of hooks.
      ValueError: if `on_nan`, or a `max_loss`, `spike` or `logdir` of `settings`, disagrees with a
        NanLossHook, or is nothing we know.
    """
    _require_hooks(hooks)
    given = watchers_in(hooks)
    if not given:
        watcher = GateWatcher(on_nan, settings=settings)
        return list(hooks) + [watcher], watcher
    for hook in given:
        if on_nan is not None and list(hook.fallbacks) != fallbacks_of(on_nan):
            _disagree('on_nan', on_nan, hook, list(hook.fallbacks))
        own = hook.own_settings
        for name in ('max_loss', 'spike', 'logdir'):
            asked, said = getattr(settings, name), getattr(own, name)
            if asked is not None and said not in (None, asked):
                _disagree(name, asked, hook, said)
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
    """The hooks that watch gates."""
    return [hook for hook in hooks if isinstance(hook, GateWatcher)]


@contextlib.contextmanager
def handed(hooks: Sequence[tf1.train.SessionRunHook], training: Training) -> Iterator[None]:
    """Hands a training to the watchers among its hooks, before their `begin`, until its end."""
    with contextlib.ExitStack() as stack:
        for hook in watchers_in(hooks):
            stack.callback(hook.leave)
            hook.join(training)
        yield
