"""Which folder of a script's belongs to which of its graphs.

A script may train several models, in turns or one after the other, as a search for hyperparameters
does. What concerns one of them is kept where that model is.
"""

import dataclasses
import itertools
import os
import sys
import threading
import time
import weakref
from typing import Any, List, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.unedited.patches import kept_already, kept_on

# Where the records are kept of scripts that save nothing before their first incident.
FALLBACK = 'slimguard-logs'


class FallbackFolder:
    """A folder in `slimguard-logs` for one start of a script, made when it is first asked for."""

    def __init__(self) -> None:
        self._parent = os.path.abspath(FALLBACK)  # the script may go to another directory
        self._started = time.strftime('%Y%m%d-%H%M%S')
        self._path: Optional[str] = None
        self._lock = threading.RLock()  # a signal may come in the midst

    def path(self) -> str:
        """Its path. Each start has its own: two may be of different scripts or processes."""
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


@dataclasses.dataclass(eq=False)
class _Writer:
    """A writer of summaries.

    Attributes:
      folder: where it writes.
      made_in: refers to the graph that it was made for, or in.
      is_anyones: whether it was made where nothing is trained, for whatever came afterwards.
      is_taken: whether it is known which graph's it is.
    """

    folder: str
    made_in: Any
    is_anyones: bool = False
    is_taken: bool = False

    def is_of(self, graph: tf.Graph) -> bool:
        return self.made_in() is graph

    def is_free(self) -> bool:
        """Whether it may be that of a graph in which it was not made."""
        graph = self.made_in()
        return not self.is_taken and (graph is None or not _has_variables(graph))


class ScriptFolders:
    """Notes the folders that a script tells TensorFlow.

    Args:
      given: where records and bundles are to go; None for where the script keeps the model.
    """

    def __init__(self, given: Optional[str]):
        self._given = given
        self._writers: List[_Writer] = []
        self._first: Any = None  # refers to the graph that was the first to ask for its rate
        self._folder_of_first: Optional[str] = None

    def note_checkpoints(self, graph: tf.Graph, folder: str) -> None:
        """Notes where a script saves, or will save, a graph's variables; the first place counts."""
        kept_on(graph, 'folder', lambda: folder)

    def note_resumed(self, graph: tf.Graph, folder: str) -> None:
        """Notes where a guarded training has left what a graph goes on from."""
        kept_on(graph, 'resumed_in', lambda: folder)

    def note_writer(self, graph: tf.Graph, folder: str) -> None:
        """Notes where a writer of summaries, made for a graph or in it, writes."""
        self._writers.append(_Writer(folder, weakref.ref(graph)))

    def of_record(self, graph: tf.Graph) -> Optional[str]:
        """Where what concerns a graph is kept; None while the script has no folder for it."""
        return self._given or self._of_model(graph) or self._of_anyone()

    def of_learning_rate(self, graph: tf.Graph) -> Optional[str]:
        """Where the factor of a graph's learning rates is kept: where no other model's is."""
        own = self._of_model(graph)
        if self._given is None:
            return own
        if self._first is None:
            self._first = weakref.ref(graph)
        if self._first() is graph:
            self._folder_of_first = own
        elif own is None or own != self._folder_of_first:
            return own
        return self._given

    def is_settled(self, graph: tf.Graph) -> bool:
        """Whether it is known for good where records go: as was said, or where the script saves."""
        return (self._given or _of_checkpoints(graph)) is not None

    def _of_model(self, graph: tf.Graph) -> Optional[str]:
        """The folder of the graph's checkpoints, or else of its summaries."""
        return _of_checkpoints(graph) or kept_already(graph, 'writes_to') or self._take(graph)

    def _take(self, graph: tf.Graph) -> Optional[str]:
        """The folder of the first writer that is the graph's, or can be."""
        made_in_it = [writer for writer in self._writers if writer.is_of(graph)]
        free = [writer for writer in self._writers if writer.is_free()]
        found = next(iter(made_in_it or free), None)
        if found is None:
            return None
        found.is_taken = True
        found.is_anyones = not made_in_it
        return kept_on(graph, 'writes_to', lambda folder=found.folder: folder)

    def _of_anyone(self) -> Optional[str]:
        """The folder of the last writer made for no graph: several graphs may use it in turn."""
        folders = [writer.folder for writer in self._writers if writer.is_anyones]
        return folders[-1] if folders else None


def _of_checkpoints(graph: tf.Graph) -> Optional[str]:
    return kept_already(graph, 'folder') or kept_already(graph, 'resumed_in')


def _has_variables(graph: tf.Graph) -> bool:
    return bool(graph.get_collection_ref(tf1.GraphKeys.GLOBAL_VARIABLES))
