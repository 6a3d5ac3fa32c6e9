"""Reads values that TensorFlow does not hand out, such as a new session, from stack frames.

Variables and arguments of TensorFlow's functions are private names as well. Each was seen in
TensorFlow 1.15.5 and in 2.21.0, under the same name and with the same meaning.
"""

import itertools
import sys
from types import CodeType, FrameType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private


def callers() -> Iterator[FrameType]:
    """The frames of our caller's callers, the nearest first: `sys._getframe`.

    The public `inspect.stack` is slow: it reads source files.
    """
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def supervisor_that_calls() -> Optional[tf1.train.Supervisor]:
    """The Supervisor of the `slim.learning.train` that calls us, or None.

    It is a local variable of that function, in tf_slim 1.1.0 and in tf.contrib.slim of 1.15. slim
    passes it to no other function.
    """
    for frame in callers():
        for value in frame.f_locals.values():
            if issubclass(type(value), tf1.train.Supervisor):
                return value
    return None


def is_of_sessions(code: Optional[CodeType]) -> bool:
    """Whether a function's code is in the module that defines `Session`."""
    return code is not None and code.co_filename == tf1.Session.close.__code__.co_filename


def is_method_of_sessions(method: Any) -> bool:
    """Whether a method of a session is TensorFlow's own, and not a replacement."""
    return is_of_sessions(getattr(method, '__code__', None))


def runs_a_session(thread: int) -> bool:
    """Whether the thread with this `get_ident` is in `session.run`: `sys._current_frames`.

    Every run, a prepared one too, goes through the module that defines `Session`. There is no
    public way to see what another thread is doing.
    """
    frame: Optional[FrameType] = sys._current_frames().get(thread)
    while frame is not None:
        if is_of_sessions(frame.f_code):
            return True
        frame = frame.f_back
    return False


def checks_numerics() -> bool:
    """Whether `tf.add_check_numerics_ops` called the function that calls this one.

    No argument of the call shows this, and the function itself cannot be replaced: user code may
    have imported it under one of several public names.
    """
    for frame in itertools.islice(callers(), 3):
        if _is_of_tensorflow(frame, 'add_check_numerics_ops'):
            return True
    return False


class CallingSession(NamedTuple):
    """What is known of the session that calls a hook's `begin`; TensorFlow does not tell hooks.

    Attributes:
      dirs: the directories that checkpoints are saved to; the session's own comes first.
      is_chief: whether the session's process is the one that saves; None if unknown.
      owners: the objects that may hold its saver: the `CheckpointSaverHook`s beside the hook, the
        session's `Scaffold`, and its creator.
      builds_saver: whether the session builds the graph's saver, once all hooks have begun.
    """

    dirs: List[str]
    is_chief: Optional[bool]
    owners: List[Any]
    builds_saver: bool

    def saver(self) -> Optional[tf1.train.Saver]:
        """The session's own Saver, if it is made already; None if it uses the graph's."""
        for owner in self.owners:
            scaffold = getattr(owner, '_scaffold', None)
            for saver in (getattr(owner, '_saver', None), getattr(scaffold, '_saver', None)):
                if saver is not None:
                    return saver
        return None

    def use(self, saver: tf1.train.Saver) -> None:
        """Makes the session and its hooks save with `saver` in place of any other."""
        for owner in self.owners:
            holders: List[Any] = [owner, getattr(owner, '_scaffold', None)]
            for holder in holders:
                if getattr(holder, '_saver', None) is not None:
                    holder._saver = saver

    @property
    def saves_at_end(self) -> bool:
        """Whether a hook saves when the training ends without an error."""
        return any(isinstance(owner, tf1.train.CheckpointSaverHook) for owner in self.owners)


def session_among_callers(hook: tf1.train.SessionRunHook) -> CallingSession:
    """The session that calls `hook.begin`.

    TensorFlow gives a hook neither its session nor the other hooks, so this function looks at the
    callers. A caller's argument or variable `hooks` may hold a `CheckpointSaverHook` beside the
    hook. The caller may be `MonitoredTrainingSession`, with the arguments `checkpoint_dir`,
    `is_chief` and `scaffold`; it makes no such hook unless the process is the chief. Or it is the
    constructor of a `MonitoredSession`, with the argument `session_creator`. From these the
    function takes `_saver` and `_scaffold`.
    """
    dirs: Dict[str, None] = {}
    is_chief: Optional[bool] = None
    owners: List[Any] = []
    builds_saver = False
    for frame in callers():
        hooks = frame.f_locals.get('hooks')
        savers = _of_kind_beside(hook, tf1.train.CheckpointSaverHook, hooks)
        dirs.update(dict.fromkeys(filter(None, map(tf_private.checkpoint_dir_of, savers))))
        owners += savers
        is_chief = True if savers else is_chief
        if _is_of_tensorflow(frame, 'MonitoredTrainingSession'):
            found = frame.f_locals.get('checkpoint_dir')
            dirs.update({found: None} if found else {})
            owners.append(frame.f_locals.get('scaffold'))
            is_chief = bool(frame.f_locals.get('is_chief', True))
        if 'session_creator' in frame.f_locals and _is_of_tensorflow(frame, '__init__'):
            owners.append(frame.f_locals['session_creator'])
            builds_saver = True
    return CallingSession(list(dirs), is_chief, owners, builds_saver)


def hooks_beside(hook: tf1.train.SessionRunHook, kind: type) -> List[Any]:
    """The hooks of a kind in the session that calls `hook.begin`.

    A caller's argument or variable `hooks` holds them beside the hook. TensorFlow does not pass a
    hook the other hooks.
    """
    found: Dict[Any, None] = {}
    for frame in callers():
        found.update(dict.fromkeys(_of_kind_beside(hook, kind, frame.f_locals.get('hooks'))))
    return list(found)


def _of_kind_beside(hook: tf1.train.SessionRunHook, kind: type, hooks: Any) -> List[Any]:
    if not isinstance(hooks, (list, tuple)) or not any(one is hook for one in hooks):
        return []
    return [one for one in hooks if isinstance(one, kind)]


def _is_of_tensorflow(frame: FrameType, name: str) -> bool:
    module = str(frame.f_globals.get('__name__'))
    return frame.f_code.co_name == name and module.startswith('tensorflow')
