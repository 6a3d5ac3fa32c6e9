"""Notices the first import of tf-slim."""

import sys
from typing import Any, Callable


class SlimWatcher:
    """A finder for ``sys.meta_path`` that finds nothing, but notices when tf-slim is imported.

    The finders after it then import tf-slim as usual.

    Args:
      notice: called each time that Python looks for tf-slim.
    """

    def __init__(self, notice: Callable[[], Any]):
        self._notice = notice

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == 'tf_slim':
            self._notice()


def stop_watching() -> None:
    """Removes the watcher."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, SlimWatcher)]
