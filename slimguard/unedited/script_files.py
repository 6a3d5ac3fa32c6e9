"""What a script saves, and where, as it tells TensorFlow.

ScriptFiles     the checkpoints that it saved, and the folders
ScriptRestorer  goes back to the newest of all these that is good
"""

import contextlib
import os
import threading
from typing import ContextManager, Iterator, List, NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.checked_save import SavingSession
from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.checkpoints.first_state import FIRST, FirstStateRestorer
from slimguard.checkpoints.rollback import those_left_last
from slimguard.checkpoints.step_turn import prepare_turn
from slimguard.graph.sessions import Inside
from slimguard.system import files
from slimguard.system.log import log
from slimguard.training.checkpoint_keeper import SAVED
from slimguard.training.stop_signals import is_main_thread
from slimguard.unedited.ending import Account
from slimguard.unedited.last_save import LastSave
from slimguard.unedited.patches import Patches, kept_on
from slimguard.unedited.script_folders import FallbackFolder, ScriptFolders

# So many of the checkpoints that were saved are looked at.
_MOST_CHECKPOINTS = 20


class _Known(NamedTuple):
    """A checkpoint of the script's."""

    saver: tf1.train.Saver
    prefix: str
    size: int  # how many variables are in it


class ScriptFiles:
    """Notes where a script saves, and lets its savers publish nothing that is not finite.

    Args:
      logdir: where records and bundles are to go; None for where the script saves.
      lock: held where threads may meet: a Supervisor saves from a thread of its own.
      seen: knows the guarded steps, and is told of saves that are refused.

    Attributes:
      folders: which folder is which graph's.
      newest: the checkpoint with a whole state, of whichever graph, that was saved last, or None.
    """

    def __init__(self, logdir: Optional[str], lock: threading.RLock, seen: Account):
        self._seen = seen
        self._lock = lock
        self.folders = ScriptFolders(logdir)
        self.newest: Optional[str] = None
        self._fallback = FallbackFolder()
        self._inside = Inside()

    def install(self, patches: Patches) -> None:
        """Begins to take notes."""
        patches.wrap(tf1.train.Saver, 'save', self._save)
        patches.wrap(tf1.train.Saver, 'restore', self._restore)
        patches.wrap(tf1.train.CheckpointSaverHook, '__init__', self._make_hook)
        patches.wrap(tf1.summary.FileWriter, '__init__', self._make_writer)

    def logdir_for_record(self, graph: tf.Graph) -> str:
        """Where to keep a record: in a folder of its own while the script has saved nothing."""
        return self.folders.of_record(graph) or self._fallback.path()

    def checkpoints(self, graph: tf.Graph) -> List[_Known]:
        """What was saved from a graph as a whole, and no part of it; the newest first."""
        known = kept_on(graph, 'checkpoints', list)[::-1]
        most = max([each.size for each in known], default=0)
        return [each for each in known if each.size == most]

    def _save(self, original, saver, sess, save_path, *args, **kwargs):
        if self._inside:
            return original(saver, sess, save_path, *args, **kwargs)
        with self._inside:
            if isinstance(sess, SavingSession):  # a FiniteSaver around this one checks
                saved = original(saver, sess, save_path, *args, **kwargs)
            else:
                finite = self._finite_saver(saver, sess.graph)
                refused = finite.refused[-1:]
                saved = finite.save(sess, save_path, *args, **kwargs)
                if finite.refused[-1:] != refused:
                    folder = os.path.dirname(files.as_path(save_path, 'save_path'))
                    self._seen.note_refused_save(finite.refused[-1].tensors, folder)
        if saved is not None:
            size = _size_of(saved)
            self._last_save(sess.graph).note(size, saver, save_path, *args, **kwargs)
            self._note(saver, sess.graph, saved, size)
        return saved

    def _restore(self, original, saver, sess, save_path):
        original(saver, sess, save_path)
        if save_path is not None and not self._inside:
            self._note_earlier(saver, sess.graph, files.as_path(save_path, 'save_path'))

    def _note_earlier(self, saver: tf1.train.Saver, graph: tf.Graph, restored: str) -> None:
        """Notes what an earlier run of the script has saved until what it resumes from."""
        if kept_on(graph, 'checkpoints', list) or not _restores_all(saver, graph, restored):
            return
        try:
            found = checkpoint_reader.checkpoints_in(os.path.dirname(restored))
        except OSError:
            return
        paths = [each.path for each in found]
        if restored in paths:
            size = _size_of(restored)
            until = paths[: paths.index(restored) + 1]
            known = [_Known(saver, path, size) for path in until if _size_of(path) == size]
            kept_on(graph, 'checkpoints', list).extend(known[-_MOST_CHECKPOINTS:])
            self._last_save(graph).note_restored(restored)
            folder = os.path.dirname(restored)
            if files.is_dir(os.path.join(folder, 'slimguard')):
                # A guarded training kept its record there. Other folders are somebody's to read.
                self.folders.note_resumed(graph, folder)

    def has_saved(self, graph: tf.Graph) -> bool:
        """Whether the script has saved the variables of a graph, so that it is known how."""
        return self._last_save(graph).is_known

    def save_again(self, session, is_to_be_found: bool = False) -> Optional[str]:
        """Saves a session as the script did last; None if it has not done so yet.

        Args:
          session: the session.
          is_to_be_found: whether to save only what the script's state file would name.
        """
        return self._last_save(session.graph).again(session, is_to_be_found)

    def save_at_signal(self, session) -> None:
        """As `save_quietly`; what it has saved is named later, once all is."""
        self.save_quietly(session, names_it=False)

    def save_quietly(self, session, names_it: bool = True) -> None:
        """Saves as `save_again`, and says what came of it; raises nothing, as the end is near."""
        try:
            saved = self.save_again(session)
        except Exception as error:
            log().error('the last good state could not be saved: %s', error)
            return
        if saved is None and gates.ranks_in(session.graph).rank:
            return  # another rank saves
        if saved is None:
            why = 'the save was refused, as said above'
            if not self.has_saved(session.graph):
                why = 'it would go where the script saves, which has saved nothing yet'
            log().warning('the last good state is not saved: %s.', why)
        elif names_it:
            log().warning(SAVED, saved)

    def _last_save(self, graph: tf.Graph) -> LastSave:
        return kept_on(graph, 'last_save', lambda: LastSave(lambda: self._seen.train_ops))

    def _finite_saver(self, saver: tf1.train.Saver, graph: tf.Graph) -> FiniteSaver:
        with self._lock:
            if not is_main_thread():
                prepare_turn(graph)
            return kept_on(saver, 'finite_saver', lambda: FiniteSaver(saver))

    def _note(self, saver, graph: tf.Graph, prefix, size: int) -> None:
        prefix = files.as_path(prefix, 'save_path')
        known = kept_on(graph, 'checkpoints', list)
        known[:] = [each for each in known if each.prefix != prefix][1 - _MOST_CHECKPOINTS :]
        known.append(_Known(saver, prefix, size))
        self.newest = self.checkpoints(graph)[0].prefix
        self.folders.note_checkpoints(graph, os.path.dirname(prefix))

    def _make_hook(self, original, hook, checkpoint_dir, *args, **kwargs):
        original(hook, checkpoint_dir, *args, **kwargs)
        folder = files.as_path(checkpoint_dir, 'checkpoint_dir')
        self.folders.note_checkpoints(tf1.get_default_graph(), folder)

    def _make_writer(self, original, writer, logdir, *args, **kwargs):
        original(writer, logdir, *args, **kwargs)
        if logdir:
            given = kwargs.get('graph', args[0] if args else None)
            graph = given if isinstance(given, tf.Graph) else tf1.get_default_graph()
            self.folders.note_writer(graph, files.as_path(logdir, 'logdir'))


def _size_of(prefix: str) -> int:
    """How many variables a checkpoint holds."""
    # Not list_variables, which takes the prefix for a directory where a file system has none.
    return len(tf1.train.NewCheckpointReader(prefix).get_variable_to_shape_map())


def _restores_all(saver: tf1.train.Saver, graph: tf.Graph, prefix: str) -> bool:
    """Whether a saver restores all that a checkpoint holds, and that is all that the graph has."""
    restore = graph.get_operation_by_name(saver.as_saver_def().restore_op_name)
    restores = [op for op in graphs.ancestors([restore]) if op.type == 'RestoreV2']
    names = [tf.get_static_value(op.inputs[1]) for op in restores]
    count = sum(len(each) for each in names if each is not None)
    with graph.as_default():
        return len(tf1.global_variables()) <= count == _size_of(prefix)


class ScriptRestorer(FirstStateRestorer):
    """Goes back to the newest good checkpoint of the script's, or to before the first step."""

    def __init__(self, script_files: ScriptFiles, graph: tf.Graph):  # no saver, no logdir
        FirstStateRestorer.__init__(self)
        self.logdir = 'the script'
        self._files = script_files
        self._graph = graph

    @property
    def why_not_saved(self) -> str:
        if not self._files.has_saved(self._graph):
            return 'the script has saved nothing yet since it was started, so nobody knows how'
        return (
            'the script names its checkpoints by no count of steps, so no name would make a '
            'restart find it'
        )

    def save(self, session) -> Optional[str]:
        """Saves the state as the script itself does, where a restart of that finds it."""
        return self._files.save_again(session, is_to_be_found=True)

    def published(self) -> Optional[str]:
        """The checkpoint that the script saved last, or None."""
        return next((known.prefix for known in self._files.checkpoints(self._graph)), None)

    def good(self) -> Iterator[str]:
        """The good checkpoints, and then what says that it is the state before the first step."""
        if not gates.ranks_in(self._graph).are_several:  # of several ranks, only one saves
            paths = [known.prefix for known in self._files.checkpoints(self._graph)]
            for path in those_left_last(paths[::-1]):
                if checkpoint_reader.read(path).is_good:
                    yield path
        yield from FirstStateRestorer.good(self)

    def restore(self, session, checkpoint: str) -> None:
        """Goes back to what `newest` said."""
        if checkpoint == FIRST:
            FirstStateRestorer.restore(self, session, checkpoint)
            return
        savers = {known.prefix: known.saver for known in self._files.checkpoints(self._graph)}
        savers[checkpoint].restore(session, checkpoint)

    def nobody_saves(self) -> ContextManager:
        """Threads of a script may save meanwhile: then what is found is the newest but one."""
        return contextlib.ExitStack()
