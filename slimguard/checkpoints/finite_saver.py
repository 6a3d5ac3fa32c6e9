"""FiniteSaver: a `Saver` that refuses to save a checkpoint with a NaN or Inf.

TensorFlow's `Saver` runs one op of the graph, which writes the files, and then its state file. In
between the checkpoint is read back (`checked_save.py`). The saver's graph and settings stay as they
are, and so do its state file, its list and its clean-up.
"""

import contextlib
import itertools
import os
import threading
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_files
from slimguard.checkpoints.checked_save import NotGood, SavingSession, Spare
from slimguard.checkpoints.step_turn import turn_of
from slimguard.compat import tf_private
from slimguard.incidents import advice
from slimguard.incidents.incident import Incident
from slimguard.incidents.record_file import IncidentFile
from slimguard.system import files, texts
from slimguard.system.log import log

# How many refused saves are remembered.
_REMEMBERED = 100


class FiniteSaver(tf1.train.Saver):
    """A `tf.compat.v1.train.Saver` that never publishes a checkpoint that is not finite.

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
      var_list: what to save, as for a Saver; or the Saver to wrap, with all its settings.
      **settings: the other arguments of a Saver.

    Attributes:
      refused: an `Incident` for each of the last refused saves.
      failure: the error of the last save, if it could not be written; else None.
      lock: held while a checkpoint is saved or restored, also by threads.

    Raises:
      ValueError: for settings together with a Saver to wrap; and whenever a Saver raises it.
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
          save_path: the prefix of the checkpoint: a str, bytes or `os.PathLike`. A relative one is
            made absolute here: a later change of the working directory does not matter.
          **: the others are explained in the documentation of `tf.compat.v1.train.Saver.save`.

        Returns:
          The prefix of the checkpoint, which begins like `save_path`; None if the save was refused.
        """
        given = files.as_text(save_path, 'save_path')
        path = absolute_prefix(given)
        if self._saver.saver_def is None:  # the saver is empty, or was never built: Saver says so
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
                if session.written is not None:  # else a good checkpoint stays there
                    _note_published(saved)
                return given + saved[len(path) :]
            except NotGood as refusal:
                # The list lacks those of write_state=False and, with max_to_keep=0, is empty.
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


_numbers = itertools.count(1)
_published: Tuple[int, str] = (0, '')


def last_published() -> Tuple[int, str]:
    """How many checkpoints the FiniteSavers of this process have published, and the last one."""
    return _published


def _note_published(prefix: str) -> None:
    global _published
    _published = next(_numbers), prefix


def absolute_prefix(save_path: str) -> str:
    """The absolute prefix of a checkpoint; a slash at its end, of a folder, stays."""
    path = files.as_path(save_path, 'save_path')
    return path + '/' if save_path.endswith('/') else path


@contextlib.contextmanager
def _relative_state(saver: tf1.train.Saver) -> Iterator[None]:
    """Has a saver list absolute paths, and write them relative to the state file's folder."""
    listed = tf_private.checkpoints_and_times(saver)
    saver.set_last_checkpoints_with_time(
        [(absolute_prefix(path), written) for path, written in listed]
    )
    with tf_private.saving_relative_paths(saver):
        yield


def offer_saver(
    graph: tf.Graph, saver: Optional[tf1.train.Saver] = None, is_built_later: bool = False
) -> tf1.train.Saver:
    """The saver that TensorFlow's hooks and MonitoredSessions find in a graph: its first.

    Args:
      graph: the graph.
      saver: becomes the graph's saver if it has none; by default a new `FiniteSaver`.
      is_built_later: whether the session that is being made builds a new saver, once all hooks have
        begun: hooks may add variables.
    """
    savers = graph.get_collection_ref(tf1.GraphKeys.SAVERS)
    if not savers:
        with graph.as_default():
            if saver is None and is_built_later:  # as a Scaffold makes its own
                saver = FiniteSaver(sharded=True, allow_empty=True, defer_build=True)
            savers.append(saver or FiniteSaver())
    return savers[0]


def make_finite(graph: tf.Graph, saver: tf1.train.Saver) -> FiniteSaver:
    """Puts a `FiniteSaver` in the place of a graph's saver, where hooks find it; returns it."""
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
        '' if what_helps is None else ' %s.' % what_helps,
    )
    return incident


def _unguarded(names: Sequence[str], graph: tf.Graph) -> List[str]:
    """The names of variables that no gate writes, so that no gate keeps them finite."""
    variables = {op.name: op for op in graph.get_operations() if op.type in graphs.VARIABLES}
    guarded = gates.variables_behind_gates(graph)
    return [name for name in names if name in variables and variables[name] not in guarded]
