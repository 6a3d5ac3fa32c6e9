"""Processes that a script has `multiprocessing` spawn are guarded as the script is.

A fork has all that its parent has. A child that is spawned, or that a fork server makes, begins
with nothing: it is sent how to begin, and what to run. With the first it gets what guards it.
Whatever such a child does, it is guarded only if it imports TensorFlow, and just before.
"""

import builtins
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

if TYPE_CHECKING:  # it imports TensorFlow, which a child does by itself
    from slimguard.unedited.patches import Patches

# `multiprocessing` sends a child a dictionary; the child reads the keys that it knows.
_KEY = 'slimguard'
_TRIGGERS = frozenset(['tensorflow', 'tf_keras', 'tf_slim'])
# The name under which `multiprocessing` begins a fork server, which runs no code of the script.
_OF_A_FORK_SERVER = 'ignore'


def hand_on(patches: 'Patches', guard: Callable[[], object], note: Callable[[], object]) -> None:
    """Guards the children that `multiprocessing` spawns, too, until the patches are undone.

    Args:
      patches: notes the replacements.
      guard: guards the process in which it is called; it is pickled for each child.
      note: called for each child.
    """
    original = spawn.get_preparation_data

    def with_guard(name: str) -> Dict[str, Any]:
        data = original(name)
        if name != _OF_A_FORK_SERVER:
            note()
            data[_KEY] = _Guard(guard)
        return data

    patches.replace(spawn, 'get_preparation_data', with_guard)


class _Guard:
    """When a child unpickles it, the child will be guarded once it imports TensorFlow."""

    def __init__(self, guard: Callable[[], object]):
        self._guard = guard

    def __reduce__(self) -> Tuple[Any, ...]:
        return before_tensorflow, (self._guard,)


def before_tensorflow(guard: Callable[[], object]) -> None:
    """Calls `guard` just before an import statement first imports TensorFlow."""
    original, is_done = builtins.__import__, False

    def import_after_guard(name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_done
        if is_done or name.partition('.')[0] not in _TRIGGERS:
            return original(name, *args, **kwargs)
        is_done = True
        if builtins.__import__ is import_after_guard:
            builtins.__import__ = original
        guard()
        return builtins.__import__(name, *args, **kwargs)  # may be the TensorFlow 1 names

    builtins.__import__ = import_after_guard
