"""FiniteSaver: a `Saver` that refuses to save a checkpoint with a NaN or Inf.

TensorFlow's `Saver` first runs an op that writes the checkpoint's files, and then writes the state
file. In between, a FiniteSaver reads every byte of the checkpoint back from the disk, checks every
float, and removes the files if one is bad. It does not change the Saver's graph, settings, state
file, list or clean-up.

After each restart a Saver saves the same step again, and replaces the two files of that checkpoint.
A kill between the two files would leave a broken checkpoint as the newest, and the new checkpoint
may be refused. So a `Spare` keeps the old checkpoint under another name until then.
"""

import contextlib
import itertools
import os
import threading
import time
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_files, checkpoint_reader, state_file
from slimguard.checkpoints.checkpoint_files import reason_of, step_in_name
from slimguard.checkpoints.checkpoint_reader import Inspection
from slimguard.checkpoints.state_file import SPARE
from slimguard.checkpoints.step_turn import turn_of
from slimguard.compat import tf_private
from slimguard.graph.sessions import SessionWrapper
from slimguard.graph.single_runs import run_once
from slimguard.incidents import advice
from slimguard.incidents.incident import Incident
from slimguard.incidents.record_file import IncidentFile
from slimguard.system import files, texts
from slimguard.system.log import log

# How many refused saves are remembered.
_REMEMBERED = 100
# A save may meet a NaN that a gate is about to undo: how often to try, and the seconds in between.
_TRIES, _PAUSE = 5, 0.05


class FiniteSaver(tf1.train.Saver):
    """A `tf.compat.v1.train.Saver` that refuses to save a checkpoint with a NaN or Inf.

    Make it with a Saver's arguments, or around an existing Saver:

        saver = slimguard.FiniteSaver(max_to_keep=20)
        saver = slimguard.FiniteSaver(my_saver)

    Use it wherever a Saver goes: a `Scaffold`, a `CheckpointSaverHook`, an Estimator, a plain
    session. (`slimguard.train` wraps any saver that you pass.) It reads each save back. If the save
    holds a NaN or Inf, or cannot be read, it removes the files, logs a line, and `save` returns
    None; the earlier checkpoints stay, and so does the state file.

    A save that fails, as on a full disk, raises TensorFlow's error; its incomplete files are
    removed.

    Args:
      var_list: what to save, as a Saver takes it; or the Saver to wrap, with all its settings.
      **settings: the other arguments of a Saver.

    Attributes:
      refused: an `Incident` for each of the last refused saves.
      failure: the error of the last save, if it could not be written; else None.
      lock: held while a checkpoint is saved or restored, also by threads.

    Raises:
      ValueError: if both settings and a Saver to wrap are given; or if the Saver raises it.
    """

    def __init__(self, var_list: Any = None, **settings):
        if isinstance(var_list, tf1.train.Saver):
            if settings:
                raise ValueError(
                    'FiniteSaver was given a Saver and %s beside it; make the Saver with these, '
                    'then wrap it' % ', '.join(sorted(settings))
                )
            self._saver = var_list
        else:
            self._saver = tf1.train.Saver(var_list, **settings)
        self.refused: List[Incident] = []
        self.failure: Optional[tf.errors.OpError] = None
        # The Supervisor saves from a thread of its own, while a rollback may restore.
        self.lock = threading.RLock()
        self._saved: Optional[str] = None

    # The wrapped saver holds the state; the inherited methods of a Saver read it from there.

    def __getattr__(self, name):
        if name == '_saver':
            raise AttributeError(name)
        return getattr(self._saver, name)

    def build(self):
        """As `Saver.build`."""
        self._saver.build()

    def set_last_checkpoints(self, last_checkpoints):
        """As `Saver.set_last_checkpoints`."""
        self._saver.set_last_checkpoints([absolute_prefix(path) for path in last_checkpoints])

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time):
        """As `Saver.set_last_checkpoints_with_time`."""
        self._saver.set_last_checkpoints_with_time(
            [(absolute_prefix(path), written) for path, written in last_checkpoints_with_time]
        )

    def restore(self, sess, save_path):
        """As `Saver.restore`; `save_path` may be bytes or an `os.PathLike` as well."""
        with self.lock:
            self._saver.restore(
                sess, save_path if save_path is None else files.as_text(save_path, 'save_path')
            )

    def save(self, sess, save_path, global_step=None, latest_filename=None, *args, **kwargs):
        """Saves as `Saver.save` does, or refuses.

        The state file gets paths relative to its folder, as with ``save_relative_paths=True``, so
        the folder can be moved.

        Args:
          save_path: the prefix of the checkpoint: a str, bytes or `os.PathLike`. A relative prefix
            is made absolute here, so the working directory may change later.
          **: for the other arguments see `tf.compat.v1.train.Saver.save`.

        Returns:
          The prefix of the checkpoint: `save_path`, then the step; None if the save was refused.
        """
        given = files.as_text(save_path, 'save_path')
        path = absolute_prefix(given)
        if self._saver.saver_def is None:  # an empty or unbuilt saver: Saver.save handles both
            return self._saver.save(sess, given, global_step, latest_filename, *args, **kwargs)
        with contextlib.ExitStack() as stack:
            turn = turn_of(sess.graph)
            if turn is not None and not turn.is_mine:  # another thread trains
                stack.enter_context(turn.no_step())
            stack.enter_context(self.lock)
            stack.enter_context(_relative_state(self._saver))
            rest = (global_step, latest_filename) + args
            spare = Spare(self._saver, os.path.dirname(path), latest_filename or 'checkpoint')
            session = SavingSession(sess, self._saver, spare)
            self.failure = None
            is_saved = False
            try:
                saved = self._saver.save(session, path, *rest, **kwargs)
                is_saved = True
                self._saved = saved
                if session.written is not None:  # else nothing was written over the old one
                    _note_published(saved)
                return given + saved[len(path) :]
            except NotGood as refusal:
                # The list lacks saves with write_state=False; with max_to_keep=0 it is empty.
                newest = next(reversed(self.last_checkpoints), self._saved)
                self.refused.append(_refused(refusal, path, newest, sess.graph))
                del self.refused[:-_REMEMBERED]
                return None
            except tf.errors.OpError as error:
                checkpoint_files.remove_temporary(session.written or path)
                self.failure = error
                raise
            finally:
                spare.drop(is_saved)


class NotGood(Exception):
    """A checkpoint must not be published.

    Attributes:
      inspection: what was found in it.
      path: its prefix.
      step: the global step in its name, or else in the checkpoint; or None.
    """

    def __init__(self, inspection: Inspection, path: str):
        Exception.__init__(self, str(inspection))
        self.inspection = inspection
        self.path = path
        step = step_in_name(path)
        self.step = inspection.step if step is None else step


class Spare:
    """Keeps a checkpoint under another name while a new one takes its place.

    Args:
      saver: the saver; its list of checkpoints goes into the state file.
      logdir: the folder of the checkpoints.
      latest_filename: the name of the state file in it.
    """

    def __init__(self, saver: tf1.train.Saver, logdir: str, latest_filename: str):
        self._saver = saver
        self._logdir = logdir
        self._latest_filename = latest_filename
        self._names: Optional[Tuple[str, str]] = None  # the checkpoint's own, and the spare's

    def make(self, path: str) -> bool:
        """Keeps the checkpoint at `path`, if any; if it was the newest, publishes the spare.

        Returns:
          Whether a new checkpoint may replace it: False if it is good and no spare could be made.
        """
        if self._names is not None or not checkpoint_files.files_of(path):
            return True
        spare, newest = _spare_of(path), self._newest()
        if newest == spare:  # a process was killed while it replaced the checkpoint
            self._names = path, spare
            return True
        checkpoint_files.remove(spare)
        try:
            checkpoint_files.link(path, spare)
            if newest == path:
                self._publish(spare, path)
        except (OSError, tf.errors.OpError) as error:  # neither links nor space for a copy
            checkpoint_files.remove(spare)
            if not checkpoint_reader.read(path).is_good:
                return True
            log().warning('%s is there already, and is not saved again: %s', path, error)
            return False
        self._names = path, spare
        return True

    def drop(self, is_saved: bool) -> None:
        """Removes the spare; first puts it back, unless a good checkpoint `is_saved` instead."""
        if self._names is None:
            return
        own, spare = self._names
        is_published = self._newest() == spare
        try:
            if not (is_saved or checkpoint_reader.read(own).is_good):
                checkpoint_files.remove(own)
                checkpoint_files.link(spare, own)
            if is_published:
                self._publish(own, own)
        except (OSError, tf.errors.OpError) as error:  # a full disk; the spare stays
            log().warning('the copy %s of checkpoint %s stays: %s', spare, own, error)
            return
        checkpoint_files.remove(spare)

    def _newest(self) -> Optional[str]:
        return state_file.newest_in(self._logdir, self._latest_filename)

    def _publish(self, path: str, replaced: str) -> None:
        others = [p for p in self._saver.last_checkpoints if p != replaced]
        state_file.write(self._logdir, others + [path], self._latest_filename)


def _spare_of(path: str) -> str:
    """The path of the spare of a checkpoint; it ends in the same step."""
    folder, name = os.path.split(path)
    stem, dash, step = name.rpartition('-')
    return os.path.join(folder, stem + SPARE + dash + step if dash else step + SPARE)


class SavingSession(SessionWrapper):
    """The session that a Saver saves with; for a bad checkpoint it raises `NotGood`.

    Args:
      session: the session to save.
      spare: keeps the checkpoint that is replaced, if any.

    Attributes:
      written: the prefix of the checkpoint that it wrote; None if it wrote none.
    """

    def __init__(self, session, saver: tf1.train.Saver, spare: Spare):
        SessionWrapper.__init__(self, session)
        self._saver_def = saver.saver_def
        self._spare = spare
        self.written: Optional[str] = None

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        is_name = isinstance(fetches, str)
        if not is_name or fetches != self._saver_def.save_tensor_name:
            return SessionWrapper.run(self, fetches, feed_dict, options, run_metadata)
        assert feed_dict is not None  # a Saver feeds the prefix
        (path,) = feed_dict.values()
        if not self._spare.make(path):
            return path
        self.written = path
        may_be_undone = any(gate.transient for gate in gates.gates_of(self.graph).values())
        for tries_left in reversed(range(_TRIES if may_be_undone else 1)):
            written = self._write(path, fetches, feed_dict)
            inspection = checkpoint_reader.read(tf.compat.as_str_any(written))
            if inspection.is_good:
                return written
            checkpoint_files.remove(path)
            if not tries_left:
                raise NotGood(inspection, path)
            time.sleep(_PAUSE)

    def _write(self, path: str, fetches: str, feed_dict: dict) -> Any:
        try:
            return run_once(self._session, fetches, feed_dict)
        except tf.errors.OpError as error:
            checkpoint_files.remove(path)
            log().error('checkpoint %s could not be written: %s', path, reason_of(error))
            raise


_numbers = itertools.count(1)
_published: Tuple[int, str] = (0, '')


def last_published() -> Tuple[int, str]:
    """How many checkpoints this process's FiniteSavers have published; and the last of these."""
    return _published


def _note_published(prefix: str) -> None:
    global _published
    _published = next(_numbers), prefix


def absolute_prefix(save_path: str) -> str:
    """The absolute prefix of a checkpoint; keeps a slash at the end."""
    path = files.as_path(save_path, 'save_path')
    return path + '/' if save_path.endswith('/') else path


@contextlib.contextmanager
def _relative_state(saver: tf1.train.Saver) -> Iterator[None]:
    """Inside, a saver lists absolute paths, and writes them relative to the state file's folder."""
    listed = tf_private.checkpoints_and_times(saver)
    saver.set_last_checkpoints_with_time(
        [(absolute_prefix(path), written) for path, written in listed]
    )
    with tf_private.saving_relative_paths(saver):
        yield


def offer_saver(
    graph: tf.Graph, saver: Optional[tf1.train.Saver] = None, is_built_later: bool = False
) -> tf1.train.Saver:
    """The graph's first saver, which TensorFlow's hooks use; adds one if the graph has none.

    Args:
      saver: becomes the graph's saver if it has none; by default a new `FiniteSaver`.
      is_built_later: whether the new session builds the saver only after all hooks have begun,
        since hooks may add variables.
    """
    savers = graph.get_collection_ref(tf1.GraphKeys.SAVERS)
    if not savers:
        with graph.as_default():
            if saver is None and is_built_later:  # made as a Scaffold makes its own saver
                saver = FiniteSaver(sharded=True, allow_empty=True, defer_build=True)
            savers.append(saver or FiniteSaver())
    return savers[0]


def make_finite(graph: tf.Graph, saver: tf1.train.Saver) -> FiniteSaver:
    """Replaces a graph's saver by a `FiniteSaver`, so that hooks use it; returns it."""
    if isinstance(saver, FiniteSaver):
        return saver
    with graph.as_default():
        finite = FiniteSaver(saver)
    savers = graph.get_collection_ref(tf1.GraphKeys.SAVERS)
    savers[:] = [finite if each is saver else each for each in savers]
    return finite


def _refused(refusal: NotGood, save_path: str, newest: Optional[str], graph: tf.Graph) -> Incident:
    """The incident of a refused save; logs it, and records it."""
    names = refusal.inspection.non_finite
    unguarded = _unguarded(names, graph)
    what_helps = advice.for_a_refused_save(unguarded) if unguarded else None
    incident = Incident.now(
        step=refusal.step,
        loss=None,
        reason='not finite: ' + ', '.join(names) if names else str(refusal),
        tensors=names,
        strategy='saver',
        state_lost=True,
        action='save refused',
        advice=what_helps,
    )
    file = IncidentFile(os.path.dirname(save_path))
    file.append(incident)
    file.close()
    log().error(
        'checkpoint %s is refused, %s. %s.%s',
        refusal.path,
        'not finite: ' + texts.listed(names, 5) if names else refusal,
        'None was saved before' if newest is None else 'The newest is still ' + newest,
        '' if what_helps is None else ' ' + what_helps,
    )
    return incident


def _unguarded(names: Sequence[str], graph: tf.Graph) -> List[str]:
    """The names of variables that no gate keeps finite, since no gate writes them."""
    variables = {op.name: op for op in graph.get_operations() if op.type in graphs.VARIABLES}
    guarded = gates.variables_behind_gates(graph)
    return [name for name in names if name in variables and variables[name] not in guarded]
