"""The private names of TensorFlow that slimguard uses, one function for each.

Each was seen in TensorFlow 1.15.5 and in 2.21.0, under the same name and with the same meaning;
where the two differ, the function says so. When a new TensorFlow breaks one, mend it here.

Variables and arguments of TensorFlow's own functions are private names as well: tf_callers.py reads
them. repairs.py has the names that tf-slim needs.
"""

import contextlib
import threading
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.core.protobuf import config_pb2

# TensorFlow's Saver and Supervisor accept this class as a session. It has no public name.
SessionInterface = next(c for c in tf1.Session.__mro__ if c.__name__ == 'SessionInterface')


def session_class() -> type:
    """The class whose `run` every session has: `BaseSession`, under no public name."""
    return next(c for c in tf1.Session.__mro__ if 'make_callable' in vars(c))


# Reading a graph.


def control_flow_context(op: tf.Operation) -> Any:
    """The branch or loop (of v1 control flow) that `op` was created in, or None.

    `Operation._get_control_flow_context`. The public `tf.Graph` has only the context of new ops.
    """
    return op._get_control_flow_context()


def ops_waiting_for(op: tf.Operation) -> List[tf.Operation]:
    """The ops that have `op` among their control inputs.

    `Operation._control_outputs`. The public `control_inputs` is the other direction: it would have
    to be read for every op of the graph.
    """
    return op._control_outputs


def op_def_for_type(graph: tf.Graph, op_type: str) -> Any:
    """The OpDef of a type of op; raises NotFoundError or KeyError for an unknown one.

    The public `Graph.op_def_for_type` of 2.21 is `Graph._get_op_def` on 1.15.
    """
    find: Callable = getattr(graph, 'op_def_for_type', None) or graph._get_op_def
    return find(op_type)


def is_function(graph: tf.Graph, op_type: str) -> bool:
    """Whether a type of op is a function of the graph's library, such as a `Defun`.

    `Graph._is_function`. The public `as_graph_def().library` copies the whole graph.
    """
    return graph._is_function(op_type)


def function_library(graph: tf.Graph) -> Dict[str, Any]:
    """The FunctionDefs of a graph, by name.

    `Graph._copy_functions_to_graph_def`. The public `as_graph_def` copies every constant of the
    model as well.
    """
    graph_def = tf1.GraphDef()
    graph._copy_functions_to_graph_def(graph_def, 0)
    return {function.signature.name: function for function in graph_def.library.function}


def is_closed(session: tf1.Session) -> bool:
    """Whether a session is closed: `BaseSession._closed`. In public, only a run shows this."""
    return session._closed


def gpu_options_of(session: tf1.Session) -> Optional[tf1.GPUOptions]:
    """The GPU options of a session's `BaseSession._config`; None if it has no config.

    A second session needs the same options: TensorFlow 1.15 refuses another `visible_device_list`.
    """
    config = getattr(session, '_config', None)
    return None if config is None else config.gpu_options


def op_that_was_differentiated(op: tf.Operation) -> Optional[tf.Operation]:
    """For an op that `tf.gradients` made, the op of the forward pass; None for any other.

    `Operation._original_op`. There is no public name.
    """
    return getattr(op, '_original_op', None)


GRADIENTS = '_GradientsHelper'


def gradients_module() -> Any:
    """The module whose function named `GRADIENTS` computes all that `tf.gradients` returns.

    `gradients_util._GradientsHelper(ys, xs, grad_ys, ...)` returns a gradient or None for each of
    `xs`. `tf.gradients` has several public names, and user code may have imported any of them. All
    of them, and `Optimizer.compute_gradients`, look up this function at each call.
    """
    from tensorflow.python.ops import gradients_util

    return gradients_util


def frames_of(op: tf.Operation) -> Any:
    """The calls that led to `op`, each with `filename`, `lineno` and `name`; the outermost first.

    `Operation._traceback` on 1.15, where the public `traceback` asks the disk for each call whether
    its file has changed. On 2.21 the public `traceback` does not ask the disk, and the private name
    is gone.
    """
    found = getattr(op, '_traceback', None)
    return op.traceback if found is None else found


# Editing a graph.


def lock_against_sessions(graph: tf.Graph) -> ContextManager:
    """Inside, no other thread's session sees the ops that are added.

    `Graph._mutation_lock`: it excludes the `_session_run_lock` that sessions take to run. Ops that
    a session has seen can get no new inputs, so no session may see half a gate.
    """
    return graph._mutation_lock()


def replace_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Feeds an existing op with another tensor.

    `Operation._update_input`. The public ways (`import_graph_def` with an `input_map`) make a copy
    of the op.
    """
    op._update_input(index, tensor)


def add_control_input(op: tf.Operation, control: tf.Operation) -> None:
    """Makes an existing op wait for another op.

    `Operation._add_control_input`. The public `tf.control_dependencies` is for ops yet to be
    created.
    """
    op._add_control_input(control)


def create_op(
    graph: tf.Graph, op_type: str, inputs: Sequence[tf.Tensor], dtypes: Sequence, **options
) -> tf.Operation:
    """Creates an op of any type: `Graph._create_op_internal`.

    With ``compute_device=False`` the caller's device functions are not called. The public
    `Graph.create_op` spends its time on arguments that are no longer used.
    """
    return graph._create_op_internal(op_type, inputs, dtypes, **options)


def set_device(op: tf.Operation, device: str) -> None:
    """Puts an existing op on a device: `Operation._set_device`.

    The public `tf.device` is for ops yet to be created, and takes longer.
    """
    op._set_device(device)


def uncompiled(graph: tf.Graph) -> ContextManager:
    """Inside, new ops are left out of XLA's automatic clustering.

    `Graph._attr_scope`, with the attribute that the public `tf.xla.experimental.jit_scope` sets.
    The public function also adds to a collection, and `export_meta_graph` warns of that.
    """
    return _compiling(graph, tf1.AttrValue(b=False))


def compiled_as_asked(graph: tf.Graph) -> ContextManager:
    """Inside, `uncompiled` and any `jit_scope` have no effect on new ops.

    It gives TensorFlow a function that returns None for each op: None as the attribute itself is an
    error if no attribute is set.
    """
    return _compiling(graph, lambda _: None)


_COMPILE = '_XlaCompile'


@contextlib.contextmanager
def _compiling(graph: tf.Graph, value: Any) -> Iterator[None]:
    """As `Graph._attr_scope`, but safe if another thread iterates over `_attr_scope_map`."""
    scopes: Any = graph
    before = scopes._attr_scope_map
    scopes._attr_scope_map = dict(before, **{_COMPILE: value})
    try:
        yield
    finally:
        after = dict(scopes._attr_scope_map)
        after.pop(_COMPILE, None)
        if _COMPILE in before:
            after[_COMPILE] = before[_COMPILE]
        scopes._attr_scope_map = after


def callable_of(
    session: tf1.Session, feeds: Sequence[str], fetches: Sequence[str], targets: Sequence[str]
) -> Callable[..., List[Any]]:
    """A run with fixed feeds and fetches: takes the values to feed, returns the fetched values.

    `BaseSession._make_callable_from_options`, and `_do_call`, which makes errors look like those of
    `run`. The public `make_callable` feeds through `run`, and is slower: only to build its list
    takes longer than a call of this function's result.

    The result holds only a weak reference to the session. So it can be kept with the session, which
    is freed, with its variables, as soon as nobody else holds it.
    """
    options = config_pb2.CallableOptions(feed=feeds, fetch=fetches, target=targets)
    handle = session._do_call(session._make_callable_from_options, options)
    handle._session = kept = _WeaklyKept(handle._session)  # `session` may wrap another
    return lambda *values: kept.session._do_call(handle, *values)


class _WeaklyKept:
    """The attributes of a session that `BaseSession._Callable` uses: `_session` and `_closed`."""

    def __init__(self, session: tf1.Session):
        self._reference = weakref.ref(session)

    @property
    def session(self) -> Any:
        return self._reference()

    @property
    def _session(self) -> Any:
        return getattr(self.session, '_session', None)  # None if the session was freed

    @property
    def _closed(self) -> bool:
        return getattr(self.session, '_closed', True)


# Keras calls this method in a graph, as `callable_of` does, so `instrument` watches it.
MAKE_CALLABLE_FROM_OPTIONS = '_make_callable_from_options'

_opening = threading.Lock()
_OPENED = '_slimguard_opened'


@contextlib.contextmanager
def unfinalized(graph: tf.Graph) -> Iterator[None]:
    """Inside, ops can be added to a finalized graph; several threads may be inside at once.

    `Graph._unsafe_unfinalize`, which a `MonitoredSession` calls to add its summaries, and
    `Graph._finalized`. There is no public name for the first. The public `Graph.finalize` may be
    slimguard's replacement, which takes a call as the sign that the graph is complete.

    Afterwards each thread has its own stacks of devices and control dependencies. Otherwise ops
    that one thread adds could wait for ops of another thread, which may be in the middle of a save.
    """
    graph.switch_to_thread_local()
    opened: Any = graph
    with _opening:
        others = getattr(graph, _OPENED, 0)
        is_mine = bool(others or graph.finalized)
        if is_mine:
            graph._unsafe_unfinalize()
            setattr(graph, _OPENED, others + 1)
    try:
        yield
    finally:
        if is_mine:
            with _opening:
                others = getattr(graph, _OPENED) - 1
                setattr(graph, _OPENED, others)
                opened._finalized = not others


def number_of(op: tf.Operation) -> int:
    """The number of an op, in the order of creation: `Operation._id`.

    In public, only the list of all ops shows this order.
    """
    return op._id


def is_made(op: tf.Operation) -> bool:
    """Whether an op is complete: `Operation._id`, which the newest TensorFlow sets last."""
    return hasattr(op, '_id')


# Writers of files.


def is_built(saver: tf1.train.Saver) -> bool:
    """Whether a Saver has its ops: `Saver._is_built`. The public way is to wait for an error."""
    return saver._is_built


def checkpoints_and_times(saver: tf1.train.Saver) -> List[Tuple[str, float]]:
    """The checkpoints that a Saver lists, each with the time it was written.

    `Saver._last_checkpoints`. The public `last_checkpoints` has no times, but
    `set_last_checkpoints_with_time` needs them.
    """
    return saver._last_checkpoints


@contextlib.contextmanager
def saving_relative_paths(saver: tf1.train.Saver) -> Iterator[None]:
    """Inside, a Saver writes paths into the state file relative to the file's folder.

    `Saver._save_relative_paths`. The public `save_relative_paths` is an argument of the
    constructor: too late for the user's saver.
    """
    before = saver._save_relative_paths
    saver._save_relative_paths = True
    try:
        yield
    finally:
        saver._save_relative_paths = before


# Hooks, queue runners and the Supervisor.


def checkpoint_dir_of(hook: tf1.train.CheckpointSaverHook) -> Optional[str]:
    """The directory that a hook saves to: `CheckpointSaverHook._checkpoint_dir`.

    The constructor's argument has this name from TensorFlow 1.0 on. There is no public name.
    """
    return getattr(hook, '_checkpoint_dir', None)


def summary_writer_of(hook: tf1.train.SummarySaverHook) -> Any:
    """The summary writer of a hook that has begun: `SummarySaverHook._summary_writer`."""
    return getattr(hook, '_summary_writer', None)


def last_summary_step_of(hook: tf1.train.SummarySaverHook) -> Optional[int]:
    """The global step of a hook's last summaries, or None: `SummarySaverHook._timer`."""
    timer = getattr(hook, '_timer', None)
    return None if timer is None else timer.last_triggered_step()


def run_at_end(runner: tf1.train.QueueRunner, op: tf.Operation) -> None:
    """Makes a QueueRunner run `op` when it ends, in place of the op that closes its queue.

    `QueueRunner._cancel_op` and `_close_op`. The public constructor takes a `cancel_op`, but here
    the runner is TensorFlow's own, made by `SyncReplicasOptimizer`.
    """
    runner._cancel_op = runner._close_op = op


def replace_enqueue_op(runner: tf1.train.QueueRunner, old: tf.Operation, new: tf.Operation) -> None:
    """Replaces `old` by `new` in the threads that a QueueRunner starts later.

    `QueueRunner._enqueue_ops`. The public constructor takes them, but here the runner is
    TensorFlow's own, made by `SyncReplicasOptimizer`.
    """
    runner._enqueue_ops = [new if op is old else op for op in runner.enqueue_ops]


def has_threads(runner: tf1.train.QueueRunner) -> bool:
    """Whether threads of a QueueRunner run: `_runs_per_session`. There is no public name."""
    return any(list(runner._runs_per_session.values()))


def replace_method(supervisor: tf1.train.Supervisor, name: str, method: Callable) -> Callable:
    """Makes slim's loop call `method` in place of a method of its Supervisor.

    slim does not promise when it calls `should_stop`, `start_queue_runners`,
    `prepare_or_wait_for_session` and `stop`; the order is that of tf_slim 1.1.0 and of
    tf.contrib.slim in 1.15. `Supervisor.managed_session` calls `stop` as well, whether it ends with
    an error or not. slim makes the Supervisor itself, and no argument can replace its class.

    Returns:
      The Supervisor's own method.
    """
    own = getattr(type(supervisor), name)
    setattr(supervisor, name, method)
    return lambda *args, **kwargs: own(supervisor, *args, **kwargs)


def slice_info(variable: Any) -> Any:
    """Which slice of a partitioned variable this is: `full_name` and `spec`; or None.

    `Variable._save_slice_info`, as TensorFlow's Saver reads it. There is no public name.
    """
    return getattr(variable, '_save_slice_info', None)
