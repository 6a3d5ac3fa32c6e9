"""Notes by calls of TensorFlow where a script saves, and checks what it saves.

A script may train several models, in turns or one after the other, as a search for hyperparameters
does. So the notes on a model are kept on its graph.
"""

import itertools
import os
import sys
import threading
import time
from typing import Any, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.finite_saver import FiniteSaver, SavingSession
from slimguard.checkpoints.step_turn import prepare_turn
from slimguard.graph.sessions import OWN_WORK, Inside
from slimguard.system import files, logdirs
from slimguard.system.log import log
from slimguard.system.signals import is_main_thread
from slimguard.unedited.ending import Account
from slimguard.unedited.patches import Patches, kept_already, kept_on
from slimguard.unedited.script_saves import ScriptSaves


class ScriptFiles:
    """Notes where a script saves, and makes its savers refuse checkpoints that are not finite.

    Args:
      logdir: the folder for records and bundles; None for the folder where the script saves.
      lock: held around saves, since a Supervisor saves from a thread of its own.
      seen: the account; it knows the guarded steps, and notes refused saves.

    Attributes:
      newest: the last saved checkpoint with a whole state, of any graph; or None.
    """

    def __init__(self, logdir: Optional[str], lock: threading.RLock, seen: Account):
        self._seen = seen
        self._lock = lock
        self._given = logdir
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
        """The folder for a record; a new folder as long as the script has saved nothing."""
        return self._given or folder_of(graph) or self._fallback.path()

    def is_settled(self, graph: tf.Graph) -> bool:
        """Whether the folder of records is final, since it was given or the script saves there."""
        return (self._given or _folder_of_checkpoints(graph)) is not None

    def saves_of(self, graph: tf.Graph) -> ScriptSaves:
        """The checkpoints of a graph."""
        return kept_on(graph, 'saves', lambda: ScriptSaves(lambda: self._seen.train_ops))

    def _save(self, original, saver, sess, save_path, *args, **kwargs):
        # A FiniteSaver calls the saver that it wraps with a SavingSession. In the middle of this
        # call a signal handler may save with the script's session; check that save as well.
        if self._inside and isinstance(sess, SavingSession):
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
            prefix, saves = files.as_path(saved, 'save_path'), self.saves_of(sess.graph)
            saves.note_saved(_size_of(saved), prefix, saver, save_path, *args, **kwargs)
            self.newest = saves.newest
            kept_on(sess.graph, 'folder', lambda: os.path.dirname(prefix))  # the first counts
        return saved

    def _restore(self, original, saver, sess, save_path):
        is_scripts = bool(save_path) and not (self._inside or OWN_WORK)
        path = _good_for(save_path) if is_scripts else save_path
        original(saver, sess, path)
        if save_path is not None and not self._inside:
            self._note_earlier(saver, sess.graph, files.as_path(path, 'save_path'))

    def _note_earlier(self, saver: tf1.train.Saver, graph: tf.Graph, restored: str) -> None:
        """Notes an earlier run's checkpoints, up to the checkpoint that the script resumes from."""
        if self.saves_of(graph).newest or not _restores_all(saver, graph, restored):
            return
        try:
            checkpoints = checkpoint_reader.checkpoints_in(os.path.dirname(restored))
        except OSError:
            return
        paths = [each.path for each in checkpoints]
        if restored in paths:
            size = _size_of(restored)
            until = paths[: paths.index(restored) + 1]
            known = [path for path in until if _size_of(path) == size]
            self.saves_of(graph).note_restored(saver, known, size)
            folder = os.path.dirname(restored)
            if files.is_dir(os.path.join(folder, 'slimguard')):
                # A guarded training kept its record in this folder. Other folders may belong to
                # somebody else.
                kept_on(graph, 'resumed_in', lambda: folder)

    def _finite_saver(self, saver: tf1.train.Saver, graph: tf.Graph) -> FiniteSaver:
        with self._lock:
            if not is_main_thread():
                prepare_turn(graph)
            return kept_on(saver, 'finite_saver', lambda: FiniteSaver(saver))

    def _make_hook(self, original, hook, checkpoint_dir, *args, **kwargs):
        original(hook, checkpoint_dir, *args, **kwargs)
        folder = files.as_path(checkpoint_dir, 'checkpoint_dir')
        kept_on(tf1.get_default_graph(), 'folder', lambda: folder)

    def _make_writer(self, original, writer, logdir, *args, **kwargs):
        original(writer, logdir, *args, **kwargs)
        if logdir:
            given = kwargs.get('graph', args[0] if args else None)
            graph = given if isinstance(given, tf.Graph) else tf1.get_default_graph()
            kept_on(graph, 'written_in', lambda: files.as_path(logdir, 'logdir'))


def folder_of(graph: tf.Graph) -> Optional[str]:
    """The folder of a graph's checkpoints, or else of its first summary writer."""
    return _folder_of_checkpoints(graph) or kept_already(graph, 'written_in')


def _folder_of_checkpoints(graph: tf.Graph) -> Optional[str]:
    return kept_already(graph, 'folder') or kept_already(graph, 'resumed_in')


def _good_for(save_path: Any) -> Any:
    """The checkpoint to restore: `save_path`, unless this is the newest checkpoint and bad.

    If the newest checkpoint of a folder is damaged or not finite, the newest good one takes its
    place, and a log line says so. No file is changed.
    """
    path = files.as_path(save_path, 'save_path')
    folder = os.path.dirname(path)
    newest = tf1.train.latest_checkpoint(folder)
    if newest is None or files.as_path(newest) != path:
        return save_path
    try:
        inspection = checkpoint_reader.inspect(path)
        if inspection.is_good:
            return save_path
        good = checkpoint_reader.latest_finite_checkpoint(folder)
    except OSError:  # it cannot be read; the restore will say why
        return save_path
    if good is None:
        log().error(_NONE_GOOD, path, inspection)
        return save_path
    log().warning(
        'checkpoint %s is %s; resuming from %s, the newest that is good.',
        path,
        inspection,
        good,
    )
    return good


def _size_of(prefix: str) -> int:
    """How many variables a checkpoint holds."""
    # Not list_variables: on a file system without directories it takes the prefix for a directory.
    return len(tf1.train.NewCheckpointReader(prefix).get_variable_to_shape_map())


def _restores_all(saver: tf1.train.Saver, graph: tf.Graph, prefix: str) -> bool:
    """Whether a saver restores a whole checkpoint, with all variables of the graph in it."""
    restore = graph.get_operation_by_name(saver.as_saver_def().restore_op_name)
    restores = [op for op in graphs.ancestors([restore]) if op.type == 'RestoreV2']
    names = [tf.get_static_value(op.inputs[1]) for op in restores]
    count = sum(len(each) for each in names if each is not None)
    with graph.as_default():
        return len(tf1.global_variables()) <= count == _size_of(prefix)


class FallbackFolder:
    """A folder in `slimguard-logs` for one start of a script; the first use of `path` makes it."""

    def __init__(self) -> None:
        self._parent = os.path.abspath(logdirs.FALLBACK)  # the script may go to another directory
        self._started = time.strftime('%Y%m%d-%H%M%S')
        self._path: Optional[str] = None
        self._lock = threading.RLock()  # a signal handler may call it in the middle

    def path(self) -> str:
        """Its path. Each start has its own folder, since two starts may run different scripts."""
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
                pass  # the write will report the error
            break
        return path


def _name_of_script() -> str:
    path = sys.argv[0] if sys.argv else ''
    name, _ = os.path.splitext(os.path.basename(path))
    if name == '__main__':  # a package or a folder runs
        name = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return name if name not in ('', '-c', '-m') else 'python'


_NONE_GOOD = (
    'checkpoint %s is %s, and there is none that is good: restore a copy from elsewhere, or begin '
    'in an empty folder.'
)
