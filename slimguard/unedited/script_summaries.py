"""Adds the numbers of a script's steps, as scalars, to the summaries that the script writes.

The script, a Supervisor's thread or a `SummarySaverHook` writes a summary by `add_summary` of a
`tf.compat.v1.summary.FileWriter`. After each such call, the scalars of the training's last good
step go to the same writer.
"""

import functools
import threading
import weakref
from typing import Any, Callable, Dict, Optional

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private
from slimguard.system import files
from slimguard.training.step_history import scalars_of, step_of
from slimguard.unedited.patches import Patches


class _OfSession:
    """The last good steps of one session that are not written yet, by prefix of their tags.

    All go to the folder of the writer that is used first after a step. If a script has one writer
    for training and one for testing, this is most likely the one for training.
    """

    def __init__(self) -> None:
        self._rows: Dict[str, np.ndarray] = {}
        self._folder: Optional[str] = None

    def notes_of(self, prefix: str) -> Callable[[np.ndarray], None]:
        """A function that takes the rows of the gate whose tags have this prefix."""
        return functools.partial(self._rows.__setitem__, prefix)

    def write(self, add_summary: Callable, writer: tf1.summary.FileWriter, step: Any) -> None:
        """Writes the steps so far, if `writer` is their writer, under the script's step number."""
        if not self._rows:
            return
        folder = files.as_path(writer.get_logdir(), 'logdir')
        if self._folder is None:
            self._folder = folder
        if folder != self._folder:
            return
        for prefix in list(self._rows):
            row = self._rows.pop(prefix, None)  # another thread may have taken it
            if row is None:
                continue
            at = step_of(row) if step is None else step
            scalars = scalars_of(row, prefix)
            if at is not None and scalars.value:  # a run that only writes has no scalars
                add_summary(writer, scalars, at)


class ScriptSummaries:
    """Finds the session that a script's summary belongs to, and adds the session's scalars."""

    def __init__(self) -> None:
        self._known: Any = weakref.WeakKeyDictionary()  # the _OfSession of each session
        self._here = threading.local()
        self._last: Callable[[], Any] = lambda: None  # the newest session that trains

    def install(self, patches: Patches) -> None:
        """Begins to add scalars."""
        patches.wrap(tf1.summary.FileWriter, 'add_summary', self._add)

    def note_run(self, session) -> None:
        """Notes that this thread runs a session: its next summaries belong to this session."""
        self._here.session = weakref.ref(session)

    def of(self, session) -> Callable[[str], Callable[[np.ndarray], None]]:
        """A function that takes the rows of a session's gates, by prefix of their tags."""
        self._last = weakref.ref(session)
        return self._known.setdefault(session, _OfSession()).notes_of

    def _add(self, original, writer, summary, global_step=None):
        original(writer, summary, global_step)
        if _is_a_rate(summary):
            return
        session = getattr(self._here, 'session', self._last)()
        if session is None or tf_private.is_closed(session):
            return
        known = self._known.get(session)
        if known is not None:
            known.write(original, writer, global_step)


def _is_a_rate(summary: Any) -> bool:
    """Whether a step counter of TensorFlow wrote a summary, and not the script."""
    if not isinstance(summary, tf1.Summary):
        return False
    tags = [value.tag for value in summary.value]
    return bool(tags) and all(tag.endswith('/sec') for tag in tags)
