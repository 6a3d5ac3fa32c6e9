"""Which folder of a script's belongs to which of its graphs.

A script may train several models, in turns or one after the other, as a search for hyperparameters
does. What concerns one of them is kept where that model is.
"""

import itertools
import os
import sys
import threading
import time
import weakref
from typing import Callable, List, Optional, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.unedited.patches import kept_already, kept_on

# The folder for records of scripts that save nothing before their first incident.
FALLBACK = 'slimguard-logs'


class FallbackFolder:
    """A folder in `slimguard-logs` for one start of a script, made when it is first asked for."""

    def __init__(self) -> None:
        self._parent = os.path.abspath(FALLBACK)  # the script may go to another directory
        self._started = time.strftime('%Y%m%d-%H%M%S')
        self._path: Optional[str] = None
        self._lock = threading.RLock()  # a signal may come in the middle

    def path(self) -> str:
        """Its path. Each start has its own, since two starts may be of different scripts."""
        with self._lock:
            if self._path is None:
                self._path = self._make()
            return self._path

    def _make(self) -> str:
        name = '%s-%s' % (_name_of_script(), self._started)
        for number in itertools.count(1):
            path = os.path.join(self._parent, name if number == 1 else '%s-%d' % (name, number))
            try:
                os.makedirs(path)
            except FileExistsError:
                continue
            except OSError:
                pass  # the write itself will say so
            break
        return path


def _name_of_script() -> str:
    path = sys.argv[0] if sys.argv else ''
    name, _ = os.path.splitext(os.path.basename(path))
    if name == '__main__':  # of a package, or a folder
        name = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return name if name not in ('', '-c', '-m') else 'python'


class ScriptFolders:
    """Notes the folders that a script tells TensorFlow.

    Args:
      given: the folder for records and bundles; None for the folder of the model.
    """

    def __init__(self, given: Optional[str]):
        self._given = given
        # The folders of summary writers, each with a reference to the graph in which the writer was
        # made.
        self._writers: List[Tuple[str, Callable[[], Optional[tf.Graph]]]] = []

    def note_checkpoints(self, graph: tf.Graph, folder: str) -> None:
        """Notes where a script saves, or will save, a graph's variables; the first place counts."""
        kept_on(graph, 'folder', lambda: folder)

    def note_resumed(self, graph: tf.Graph, folder: str) -> None:
        """Notes where a guarded training has left the checkpoint from which a graph resumes."""
        kept_on(graph, 'resumed_in', lambda: folder)

    def note_writer(self, graph: tf.Graph, folder: str) -> None:
        """Notes where a writer of summaries, made for a graph or in it, writes."""
        self._writers.append((folder, weakref.ref(graph)))

    def of_record(self, graph: tf.Graph) -> Optional[str]:
        """The folder of a graph's record and bundles; None while the script has none for it."""
        return self._given or self._of_model(graph) or self._of_anyone()

    def of_learning_rate(self, graph: tf.Graph) -> Optional[str]:
        """The folder for the factor of a graph's learning rates: that of the model."""
        return self._of_model(graph)

    def is_settled(self, graph: tf.Graph) -> bool:
        """Whether the folder of records is final: it was given, or is where the script saves."""
        return (self._given or _of_checkpoints(graph)) is not None

    def _of_model(self, graph: tf.Graph) -> Optional[str]:
        """The folder of the graph's checkpoints, or else of the first writer made in it."""
        written = [folder for folder, made_in in self._writers if made_in() is graph]
        return _of_checkpoints(graph) or next(iter(written), None)

    def _of_anyone(self) -> Optional[str]:
        """The folder of the last writer that was made in a graph without a model."""
        folders = [folder for folder, made_in in self._writers if not _has_variables(made_in())]
        return folders[-1] if folders else None


def _of_checkpoints(graph: tf.Graph) -> Optional[str]:
    return kept_already(graph, 'folder') or kept_already(graph, 'resumed_in')


def _has_variables(graph: Optional[tf.Graph]) -> bool:
    return graph is not None and bool(graph.get_collection_ref(tf1.GraphKeys.GLOBAL_VARIABLES))
