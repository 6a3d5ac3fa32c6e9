"""Processes that a script has `multiprocessing` spawn are guarded as the script is.

A fork has all that its parent has. A child that is spawned, or that a fork server makes, begins
with nothing: it is sent how to begin, and what to run. With the first it gets what guards it.
Whatever such a child does, it is guarded only if it imports TensorFlow, and just before.
"""

import builtins
import importlib
import os
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

if TYPE_CHECKING:  # it imports TensorFlow, which a child does by itself
    from slimguard.unedited.patches import Patches

# `multiprocessing` sends a child a dictionary; the child reads the keys that it knows.
_KEY = 'slimguard'
# The name with which a fork server is begun, which runs nothing of the script's itself.
_OF_A_FORK_SERVER = 'ignore'
# Where slimguard was found. A child may not find it there: the script's folder has taken the place
# of the one that `python -m slimguard` was started in.
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_TRIGGERS = frozenset(['tensorflow', 'tf_keras', 'tf_slim'])


def hand_on(patches: 'Patches', guard: Callable[[], object], note: Callable[[], object]) -> None:
    """Has the children that `multiprocessing` spawns be guarded, too, until patches are undone.

    Args:
      patches: takes note of what is replaced.
      guard: guards the process that it is called in; it is pickled for each child.
      note: called for each child.
    """
    original = spawn.get_preparation_data

    def with_guard(name: str) -> Dict[str, Any]:
        data = original(name)
        if name != _OF_A_FORK_SERVER:
            note()
            data[_KEY] = (_FindsItsParent(), _Guard(guard))  # which are unpickled in this order
        return data

    patches.replace(spawn, 'get_preparation_data', with_guard)


class _FindsItsParent:
    """When a child unpickles it, the child finds the slimguard that its parent has."""

    def __reduce__(self) -> Tuple[Any, ...]:
        # Nothing of ours can be named before it is found.
        return exec, (_FIND % (_HOME, __name__),)


_FIND = """
import sys
sys.path.insert(0, %r)
try:
    import %s
finally:
    del sys.path[0]
"""


class _Guard:
    """When a child unpickles it, the child will be guarded once it imports TensorFlow."""

    def __init__(self, guard: Callable[[], object]):
        self._guard = guard

    def __reduce__(self) -> Tuple[Any, ...]:
        return before_tensorflow, (self._guard,)


def before_tensorflow(guard: Callable[[], object]) -> None:
    """Has `guard` called when this process first imports TensorFlow, and before that."""
    _BeforeTensorFlow(guard).install()


class _BeforeTensorFlow:
    def __init__(self, guard: Callable[[], object]):
        self._guard = guard
        self._import, self._import_module = builtins.__import__, importlib.import_module
        self._is_done = False

    def install(self) -> None:
        builtins.__import__ = self._on_statement
        importlib.import_module = self._on_call

    def _on_statement(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._is_first(name):
            self._guard_now()
            return builtins.__import__(name, *args, **kwargs)  # may be that of the names of 1
        return self._import(name, *args, **kwargs)

    def _on_call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._is_first(name):
            self._guard_now()
        return self._import_module(name, *args, **kwargs)

    def _is_first(self, name: str) -> bool:
        return not self._is_done and name.partition('.')[0] in _TRIGGERS

    def _guard_now(self) -> None:
        self._is_done = True
        builtins.__import__ = self._import
        importlib.import_module = self._import_module
        self._guard()
