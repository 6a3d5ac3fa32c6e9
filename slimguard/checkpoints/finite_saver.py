"""FiniteSaver: a `Saver` that lets no checkpoint with a NaN or Inf become the newest.

Saving is one op of the graph, which TensorFlow's `Saver` runs before it writes its state file.
Here that op is created a second time, behind a check of every float that is saved; the saver's
graph and settings stay as they are, and so do its state file, its list and its clean-up.

What is published is what was checked, although other threads may train meanwhile. A resource
variable is read once, and the value that is checked is the value that is written. A ref variable
has no value of its own to read: it is looked at once it is written, and what was written in vain is
removed. A NaN that a step wrote before is then still there, unless a gate took it back. Where that
may be, the file is read.
"""

import contextlib
import functools
import os
import re
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_files, checkpoint_reader, state_file
from slimguard.checkpoints.checkpoint_files import step_in_name
from slimguard.checkpoints.state_file import SPARE
from slimguard.graph import ops
from slimguard.graph.sessions import SessionWrapper
from slimguard.incidents.incident import Incident
from slimguard.incidents.record_file import IncidentFile
from slimguard.system import files

_SAVES = frozenset(['Save', 'SaveSlices', 'SaveV2'])
# Says in an error that we raised it; the names follow.
_REFUSED = 'slimguard: not finite, so this checkpoint is not written:'
# How often a save is tried anew where a gate may just be taking a NaN back, and how long between.
_TRIES, _PAUSE = 5, 0.05
# How many refused saves are remembered.
_REMEMBERED = 100
# What a checkpoint takes beyond its values: a part of them, and so many bytes for the names, the
# collections of the graph, the state file, and the events that are written meanwhile.
_MORE, _MARGIN = 1.05, 1 << 20
# What TensorFlow's errors say of a disk that is full, from 1.15 to 2.21: they are of a class,
# ResourceExhaustedError, that stands for lack of memory as well.
_FULL = ('No space left on device', 'Disk quota exceeded')
# Where they name a file that was to replace another: it is left behind.
_UNFINISHED = re.compile(r'(\S.*\.tmp[0-9a-f]{32}); (?:%s)' % '|'.join(_FULL))


class FiniteSaver(tf1.train.Saver):
    """A `tf.compat.v1.train.Saver` that never publishes a checkpoint that is not finite.

    It is made as a Saver is, with a Saver's arguments, or around a Saver that exists:

        saver = slimguard.FiniteSaver(max_to_keep=20)
        saver = slimguard.FiniteSaver(my_saver)

    and goes wherever a Saver goes: `slimguard.train` (which wraps the saver it is given by
    itself), a `Scaffold`, a `CheckpointSaverHook`, an Estimator, a plain session. A save that
    finds a NaN or Inf in a float variable writes nothing, says so in one log line, and returns
    None; the checkpoints that exist stay, and so does the state file.

    A save that fails, because the disk is full, say, raises TensorFlow's error as ever; what it
    had written is removed. In `slimguard.train`, the bundles that this training wrote give way
    first, and the save is tried once more.

    Args:
      var_list: what to save, as for a Saver; or the Saver to wrap, with all its settings.
      **settings: the other arguments of a Saver.

    Attributes:
      refused: an `Incident` for each of the last refused saves.
      failure: the error of the last save, if it could not be written; else None.
      lock: held while a checkpoint is saved or restored; threads save as well.
      make_room: called where a checkpoint does not fit on its disk, with its folder and the bytes
        it may need; removes what is worth less, and returns the paths. None for nothing.

    Raises:
      ValueError: if there are settings beside a Saver to wrap; as a Saver does.
      RuntimeError: if the graph is finalized.
    """

    def __init__(self, var_list=None, **settings):
        self.refused: List[Incident] = []
        self.failure: Optional[tf.errors.OpError] = None
        self.make_room: Optional[Callable[[str, int], List[str]]] = None
        self._checked: Optional[_CheckedSave] = None
        self._graph_size = -1, 0  # the version of the graph, and its size
        # The Supervisor saves from a thread of its own, and a rollback restores meanwhile.
        self.lock = threading.RLock()
        if isinstance(var_list, tf1.train.Saver):
            if settings:
                raise ValueError(
                    'FiniteSaver was given a Saver and %s beside it; make the Saver with these, '
                    'then wrap it' % ', '.join(sorted(settings))
                )
            self._saver = var_list
        else:
            self._saver = tf1.train.Saver(var_list, **settings)
        if self._saver._is_built:
            self._build_checks()

    # The state is the wrapped saver's. What a Saver's own methods read, they find there.

    def __getattr__(self, name):
        if name == '_saver':
            raise AttributeError(name)
        return getattr(self._saver, name)

    def build(self):
        """As `Saver.build`."""
        self._saver.build()
        self._build_checks()

    def set_last_checkpoints(self, last_checkpoints):
        """As `Saver.set_last_checkpoints`."""
        self._saver.set_last_checkpoints([_absolute(path) for path in last_checkpoints])

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time):
        """As `Saver.set_last_checkpoints_with_time`."""
        self._saver.set_last_checkpoints_with_time(
            [(_absolute(path), written) for path, written in last_checkpoints_with_time]
        )

    def restore(self, sess, save_path):
        """As `Saver.restore`; `save_path` may be bytes or an `os.PathLike` as well."""
        with self.lock:
            self._saver.restore(
                sess, save_path if save_path is None else files.as_text(save_path, 'save_path')
            )

    def save(self, sess, save_path, global_step=None, latest_filename=None, *args, **kwargs):
        """Saves as `Saver.save` does, or refuses.

        The state file lists checkpoints by paths relative to its folder, as a Saver that was made
        with ``save_relative_paths=True`` does: the folder can be moved.

        Args:
          save_path: the prefix of the checkpoint: a str, bytes or `os.PathLike`. A relative one is
            read here: where the working directory goes afterwards does not matter.
          **: the others are explained in the documentation of `tf.compat.v1.train.Saver.save`.

        Returns:
          The prefix of the checkpoint, which begins as `save_path` does; None if nothing was saved
          because a variable holds a NaN or Inf.
        """
        given = files.as_text(save_path, 'save_path')
        path = _absolute(given)
        rest = (global_step, latest_filename) + args
        if self._checked is None:  # an empty saver, or one that was never built: Saver says so
            return self._saver.save(sess, given, *rest, **kwargs)
        with self.lock, _relative_state(self._saver):
            spare = _Spare(self._saver, os.path.dirname(path), latest_filename or 'checkpoint')
            session = _SavingSession(sess, self._checked, self._saver, spare)
            self.failure = None
            try:
                save = functools.partial(self._saver.save, session, path, *rest, **kwargs)
                saved = self._save_or_make_room(save, path, session)
                return given + saved[len(path) :]
            except _NotFinite as refusal:
                self._refuse(refusal, path)
                return None
            except tf.errors.OpError as error:
                self.failure = error
                raise
            finally:
                spare.drop()

    def room_needed(self) -> int:
        """How many bytes the next checkpoint may take on its disk, its graph included; generously.

        It is written beside those that exist: the oldest goes once the new one is whole.
        """
        if self._checked is None:
            return 0
        newest = self._saver.last_checkpoints[-1:]
        # What has no shape in the graph, a table say, is known from what was saved of it.
        saved = max([self._checked.size] + [checkpoint_files.look_at(p).size for p in newest])
        return int(saved * _MORE) + self._size_of_graph() + _MARGIN

    def _size_of_graph(self) -> int:
        graph = self._checked.save_tensor.graph
        if self._graph_size[0] != graph.version:
            try:
                self._graph_size = graph.version, graph.as_graph_def().ByteSize()
            except (ValueError, tf.errors.OpError):  # of two gigabytes and more, none is saved
                self._graph_size = graph.version, 0
        return self._graph_size[1]

    def _save_or_make_room(self, save: Callable[[], str], path: str, session) -> str:
        """Saves; on a full disk, what is worth less than a checkpoint gives way to it."""
        try:
            return save()
        except tf.errors.OpError as error:
            if not _is_for_lack_of_room(error):
                raise
            written = session.written or path
            _remove_half_written(written, error)
            removed = self._make_room(os.path.dirname(path))
            if not removed:
                raise
        what = 'the bundle %s' if len(removed) == 1 else 'the bundles %s'
        what = what % ', '.join(removed)
        tf1.logging.warning(
            'slimguard: %s of this training gave way to checkpoint %s, which had no room; saving '
            'it once more.',
            what,
            written,
        )
        try:
            saved = save()
        except tf.errors.OpError as error:
            if not _is_for_lack_of_room(error):
                raise
            _remove_half_written(written, error)
            said = '%s; slimguard had removed %s of this training to make room, and saved once more'
            message = said % (_reason(error), what)
            raise type(error)(error.node_def, error.op, message) from None
        tf1.logging.warning('slimguard: checkpoint %s is written.', saved)
        return saved

    def _make_room(self, folder: str) -> List[str]:
        if self.make_room is None or files.is_remote(folder):
            return []
        return self.make_room(folder, self.room_needed())

    def _build_checks(self) -> None:
        if self._checked is not None or self._saver.saver_def is None:
            return
        graph = tf1.get_default_graph()
        if graph.finalized:
            raise RuntimeError(
                'the graph is finalized, so FiniteSaver cannot add its check; make it before a '
                'Supervisor or a MonitoredSession takes the graph'
            )
        with ops.our_scope(graph, 'save'):
            self._checked = _CheckedSave(graph, self._saver.saver_def)

    def _refuse(self, refusal: '_NotFinite', save_path: str) -> None:
        incident = Incident(
            step=refusal.step,
            loss=None,
            reason='not finite: ' + ', '.join(refusal.names),
            tensors=tuple(refusal.names),
            strategy='saver',
            time=time.time(),
            state_lost=True,
            action='save refused',
        )
        self.refused.append(incident)
        file = IncidentFile(os.path.dirname(save_path))
        file.append(incident)
        file.close()
        del self.refused[:-_REMEMBERED]
        newest = self.last_checkpoints[-1:] or ['none']
        tf1.logging.error(
            'slimguard: checkpoint %s is refused, not finite: %s. The newest is still %s.',
            refusal.path,
            ', '.join(refusal.names),
            newest[0],
        )


class _NotFinite(Exception):
    """A checkpoint is not to be published."""

    def __init__(self, names: Sequence[str], path: str, step: Optional[int]):
        Exception.__init__(self, ', '.join(names))
        self.names = list(names)
        self.path = path
        self.step = step


class _SavingSession(SessionWrapper):
    """The session that a Saver gets to save with: its save op is replaced by the checked one."""

    def __init__(self, session, checked: '_CheckedSave', saver: tf1.train.Saver, spare: '_Spare'):
        SessionWrapper.__init__(self, session)
        self._checked = checked
        self._saver_def = saver.saver_def
        self._spare = spare
        self.written: Optional[str]  # the prefix, once it is known = None

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        is_name = isinstance(fetches, str)
        if not is_name or fetches != self._saver_def.save_tensor_name:
            return self._session.run(fetches, feed_dict, options, run_metadata)
        (path,) = feed_dict.values()
        self.written = path
        self._spare.make(path)
        found = gates.gates_of(self.graph).values()
        transient = any(gate.transient for gate in found)
        # Any gate may take back an update that overflowed; the thread that trains waits for that.
        beside = bool(found) and threading.current_thread() is not threading.main_thread()
        read_back = self._checked.has_refs and (transient or beside)
        for tries_left in reversed(range(_TRIES if transient else 1)):
            try:
                return self._write(path, feed_dict, read_back)
            except _NotFinite:
                if not tries_left:
                    raise
                time.sleep(_PAUSE)

    def _write(self, path: str, feed_dict, read_back: bool):
        existed = bool(checkpoint_files.files_of(path))
        try:
            if existed and self._checked.has_refs:  # do not replace a good one by a bad one
                self._session.run(self._checked.refs_ahead.op)
            written = self._session.run(self._checked.save_tensor, feed_dict)
        except tf.errors.OpError as error:
            names = _names_in(error.message)
            # A server that dies may have written all of it: who restores can have that.
            is_whole = not (existed or names) and checkpoint_reader.read(path).is_good
            if not (existed or is_whole):
                checkpoint_files.remove(path)
            if names:
                raise _NotFinite(names, path, step_in_name(path)) from None
            said = 'is whole, but saving it failed' if is_whole else 'could not be written'
            tf1.logging.error('slimguard: checkpoint %s %s: %s', path, said, _reason(error))
            raise
        if read_back:
            finding = checkpoint_reader.read(tf.compat.as_str_any(written))
            if finding.non_finite:
                checkpoint_files.remove(path)
                raise _NotFinite(finding.non_finite, path, finding.step)
        return written


class _Spare:
    """Keeps the newest checkpoint under another name while a new one takes its place.

    A Saver that saves a step a second time, as it does after each restart, replaces two files, and
    a kill between the two leaves a torn checkpoint as the newest.
    """

    def __init__(self, saver: tf1.train.Saver, logdir: str, latest_filename: str):
        self._saver = saver
        self._logdir = logdir
        self._latest_filename = latest_filename
        self._path: Optional[str] = None
        self._spare: Optional[str] = None

    def make(self, path: str) -> None:
        """Publishes the checkpoint at `path`, if it is the newest, under its other name."""
        if self._path is not None or not files.exists(path + '.index'):
            return
        if state_file.newest_in(self._logdir, self._latest_filename) != path:
            return
        stem, dash, step = os.path.basename(path).rpartition('-')
        name = stem + SPARE + dash + step if dash else step + SPARE
        spare = os.path.join(self._logdir, name)
        checkpoint_files.remove(spare)
        try:
            checkpoint_files.link(path, spare)
            self._publish(spare, path)
        except (OSError, tf.errors.OpError) as error:  # no links there, and no room for a copy
            tf1.logging.warning('slimguard: %s is written over without a spare: %s', path, error)
            checkpoint_files.remove(spare)
            return
        self._path, self._spare = path, spare

    def drop(self) -> None:
        """Removes the other name again, unless it is what is left."""
        if self._path is None:
            return
        if state_file.newest_in(self._logdir, self._latest_filename) == self._spare:
            # The new one was not published. What is at its place may be the old, or a torn one.
            if not (checkpoint_reader.read(self._path).is_good and self._publishes_path()):
                kept = [p for p in self._saver._last_checkpoints if p[0] != self._path]
                self._saver.set_last_checkpoints_with_time(kept + [(self._spare, time.time())])
                return
        checkpoint_files.remove(self._spare)

    def _publishes_path(self) -> bool:
        try:
            self._publish(self._path, self._path)
        except (OSError, tf.errors.OpError):  # a full disk; the spare stays published
            return False
        return True

    def _publish(self, path: str, replaced: str) -> None:
        others = [p for p in self._saver.last_checkpoints if p != replaced]
        state_file.write(self._logdir, others + [path], self._latest_filename)


def _absolute(save_path: str) -> str:
    """The absolute prefix of a checkpoint; one that ends in a slash is a folder's, and stays so."""
    path = files.as_path(save_path, 'save_path')
    return path + '/' if save_path.endswith('/') else path


@contextlib.contextmanager
def _relative_state(saver: tf1.train.Saver) -> Iterator[None]:
    """Lets a saver list absolute paths, and write them down relative to the state file's folder."""
    saver.set_last_checkpoints_with_time(
        [(_absolute(path), written) for path, written in saver._last_checkpoints]
    )
    before = saver._save_relative_paths
    saver._save_relative_paths = True
    try:
        yield
    finally:
        saver._save_relative_paths = before


class _CheckedSave:
    """The ops that save, created a second time behind a check.

    Attributes:
      save_tensor: the tensor to run in place of `SaverDef.save_tensor_name`.
      size: the bytes of all that is saved and whose shape is known.
      has_refs: whether ref variables of floats are saved.
      refs_ahead: a tensor whose evaluation raises if one of those is not finite; None without.
    """

    def __init__(self, graph: tf.Graph, saver_def):
        save_tensor = graph.as_graph_element(saver_def.save_tensor_name)
        order = graphs.ancestors([save_tensor.op])
        saves = [op for op in order if op.type in _SAVES]
        self.size = sum(_bytes_of(tensor) for op in saves for tensor in _values_of(op))
        saved = list(_saved_floats(saves))
        refs = [value for value in saved if graphs.is_reference(value.tensor)]
        others = [value for value in saved if not graphs.is_reference(value.tensor)]
        self.has_refs = bool(refs)
        self.refs_ahead = _assert_finite(refs, 'refs_ahead')
        checked = _assert_finite(others, 'values')
        twin = self._make_twin(order, saves, [] if checked is None else [checked])
        written = twin[save_tensor.op].outputs[save_tensor.value_index]
        with tf.control_dependencies([written]):
            checked = _assert_finite(refs, 'refs')
        with tf.control_dependencies([written] if checked is None else [checked]):
            self.save_tensor = tf.identity(written, name='path')

    def _make_twin(self, order, saves, controls) -> Dict[tf.Operation, tf.Operation]:
        twin: Dict[tf.Operation, tf.Operation] = {}
        for op in order:
            if op not in saves and not any(needed in twin for needed in graphs.needs(op)):
                continue
            inputs = [twin[t.op].outputs[t.value_index] if t.op in twin else t for t in op.inputs]
            waits = [twin.get(c, c) for c in op.control_inputs]
            if op in saves:
                waits += controls
            twin[op] = ops.create_like(op, inputs, waits)
        return twin


class _Saved(NamedTuple):
    """A float tensor that is saved, and its name in the checkpoint."""

    tensor: Any
    name: str


def _saved_floats(saves: Sequence[tf.Operation]):
    for op in saves:
        names = tf.get_static_value(op.inputs[1])
        for number, tensor in enumerate(_values_of(op)):
            if graphs.is_float(tensor):
                name = tensor.op.name if names is None else tf.compat.as_str_any(names[number])
                yield _Saved(_source(tensor), name)


def _values_of(op: tf.Operation) -> List[tf.Tensor]:
    """What an op saves."""
    # After filename, names, and slices but for the oldest.
    return list(op.inputs)[2 if op.type == 'Save' else 3 :]


def _bytes_of(tensor: tf.Tensor) -> int:
    is_known = tensor.shape.is_fully_defined()
    return tensor.shape.num_elements() * tensor.dtype.base_dtype.size if is_known else 0


def _source(tensor):
    """The tensor that a value comes from unchanged: it is checked there, on its own device."""
    while tensor.op.type == 'Identity':
        tensor = tensor.op.inputs[0]
    return tensor


def _assert_finite(saved: Sequence[_Saved], name: str) -> Optional[tf.Tensor]:
    """A tensor that is there once all are found finite; else its evaluation raises.

    One sum of squares for each, which takes no memory. Only if a sum is not finite are the values
    looked at one by one: large ones overflow a sum.
    """
    if not saved:
        return None
    sizes = []
    for value in saved:
        with tf1.colocate_with(value.tensor.op):
            size = tf.nn.l2_loss(ops.for_arithmetic(value.tensor))
        sizes.append(tf.cast(size, tf.float32))
    is_calm = tf.reduce_all(tf.math.is_finite(tf.stack(sizes)), name=name + '_is_calm')
    calm, looking = ops.branch(is_calm, is_calm, name + '_calm')
    with tf.control_dependencies([looking]):
        bad = tf.stack([_is_bad(value.tensor) for value in saved])
        names = tf.boolean_mask(tf.constant([value.name for value in saved]), bad)
        told = tf.raw_ops.Assert(
            condition=tf.logical_not(tf.reduce_any(bad)),
            data=[tf.constant(_REFUSED), tf.strings.reduce_join(names, separator='|')],
            summarize=1,
        )
    with tf.control_dependencies([told]):
        looked = tf.identity(looking)
    return ops.merge([calm, looked], name + '_checked')


def _is_bad(tensor: tf.Tensor) -> tf.Tensor:
    with tf1.colocate_with(tensor.op):
        finite = tf.math.is_finite(ops.for_arithmetic(tensor))
        return tf.logical_not(tf.reduce_all(finite))


def _reason(error: tf.errors.OpError) -> str:
    """The line of an error that says what is wrong; TensorFlow puts it between two tracebacks."""
    return error.message.partition('\n\t [[')[0].strip().rpartition('\n')[2]


def _is_for_lack_of_room(error: tf.errors.OpError) -> bool:
    return any(said in error.message for said in _FULL)


def _remove_half_written(path: str, error: tf.errors.OpError) -> None:
    """Removes what TensorFlow leaves where there is no room: it takes what room there was."""
    checkpoint_files.remove_temporary(path)
    folder = os.path.dirname(path)
    # Of the state file or of the graph, and named in the error: nobody else's.
    for name in _UNFINISHED.findall(error.message):
        if os.path.dirname(name) == folder:
            checkpoint_files.remove_files([name])


def offer_saver(graph: tf.Graph, saver: Optional[tf1.train.Saver] = None) -> tf1.train.Saver:
    """The saver that TensorFlow's hooks and MonitoredSessions find in a graph: its first.

    If the graph has none, `saver` becomes it; or a new `FiniteSaver`.
    """
    savers = graph.get_collection_ref(tf1.GraphKeys.SAVERS)
    if not savers:
        with graph.as_default():
            savers.append(saver or FiniteSaver())
    return savers[0]


def _names_in(message: str) -> List[str]:
    """The names in the message of a refusal; empty for any other message."""
    _, found, rest = message.partition(_REFUSED + '] [')
    return rest.partition(']')[0].split('|') if found else []
