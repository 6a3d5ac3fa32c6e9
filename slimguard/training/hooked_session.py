"""A session that calls hooks around each step, as a `MonitoredSession` does: `HookedSession`."""

from typing import Callable, Dict, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.graph import TrainOp, op_of
from slimguard.graph.sessions import SessionWrapper, callable_of
from slimguard.training.fetch_structures import fetched_elements, map_fetches
from slimguard.training.hook_fetches import Requests
from slimguard.training.watchers import after_run_of, watchers_after


class HookedSession(SessionWrapper):
    """A session that calls hooks around runs of train ops, as a `MonitoredSession` does.

    Everything else (`graph`, `make_callable`, ...) is that of the session it wraps.

    Args:
      session: the `tf.compat.v1.Session` to wrap, or a wrapper of one.
      hooks: the `SessionRunHook`s, whose `begin` was called.
      train_op: a train op whose runs are steps. Those of every guarded train op are, and of any
        op that runs an optimizer.
      before_other_run: called before each run that is no step, or None.

    Attributes:
      stop_requested: whether a hook asked to stop.
    """

    def __init__(
        self,
        session,
        hooks: Sequence[tf1.train.SessionRunHook],
        train_op: Optional[TrainOp] = None,
        before_other_run: Optional[Callable[[], None]] = None,
    ):
        SessionWrapper.__init__(self, session)
        self._hooks = list(hooks)
        self._train_op = train_op
        self._steps: Dict[Tuple[str, ...], bool] = {}
        self._before_other_run = before_other_run
        self.stop_requested = False

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`."""
        if not self._is_step(fetches):
            if self._before_other_run is not None:
                self._before_other_run()
            return SessionWrapper.run(self, fetches, feed_dict, options, run_metadata)
        gated = self._through_gates(fetches)
        args = tf1.train.SessionRunArgs(gated, feed_dict)
        return self._run_hooked(args, gated, feed_dict, options, run_metadata)

    def make_callable(self, fetches, feed_list=None, accept_options=False):
        """As `tf.compat.v1.Session.make_callable`; what it returns runs steps as `run` does."""
        # Not of all that trains: a chief's QueueRunner runs one, in a thread that is no loop.
        known = gates.gates_of(self.graph)
        elements = fetched_elements(fetches, self.graph)
        if not any(op_of(each).name in known for each in elements):
            return self._session.make_callable(fetches, feed_list, accept_options)
        return callable_of(self.run, fetches, feed_list)

    def _run_hooked(
        self, args: tf1.train.SessionRunArgs, fetches, feed_dict, options, run_metadata
    ):
        """Runs a step. `args` is what hooks are told of it, `fetches` what is fetched."""
        context = tf1.train.SessionRunContext(args, self._session)
        requests = Requests(self._hooks, context, options)
        feeds = requests.feeds_with(feed_dict)
        given = requests.run_options, run_metadata
        run_metadata = run_metadata or tf1.RunMetadata()
        if requests.run_options is not None:
            given = requests.run_options, run_metadata
        # As a MonitoredSession asks: such a step is prepared, see repeated_runs.py.
        fetched = {'caller': fetches, **requests.fetches}
        results = SessionWrapper.run(self, fetched, feeds, *given)
        mine = results.pop('caller')
        # By `_make`: what an Estimator imports on TensorFlow 2 warns of a call of the class.
        values = tf1.train.SessionRunValues._make([None, requests.options, run_metadata])
        for number, hook in enumerate(self._hooks):
            try:
                hook.after_run(context, values._replace(results=results.get(hook)))
            except BaseException as error:
                for later in watchers_after(self._hooks, number):
                    seen = values._replace(results=results.get(later))
                    later.after_run_failed(context, seen, after_run_of(hook), error)
                raise
        self.note_stop(context.stop_requested)
        return mine

    def note_stop(self, is_asked: bool) -> None:
        """Notes whether a hook asked to stop in a step."""
        self.stop_requested = self.stop_requested or is_asked

    def _is_step(self, fetches) -> bool:
        elements = fetched_elements(fetches, self.graph)
        names = tuple(element.name for element in elements)
        if names not in self._steps:
            self._steps[names] = any(self._trains(op_of(element)) for element in elements)
        return self._steps[names]

    def _trains(self, op: tf.Operation) -> bool:
        if op.name in gates.gates_of(self.graph):
            return True
        if self._train_op is not None and op is op_of(self._train_op):
            return True
        return any(graphs.is_apply(needed) for needed in graphs.ancestors([op]))

    def _through_gates(self, fetches):
        """`fetches`, with the guarded train op wherever the one it was made from is asked for.

        A step function may hold on to the train op that it was given before it was guarded.
        """
        known = gates.gates_of(self._session.graph)
        replaced = []

        def through_gate(fetch):
            is_op = isinstance(fetch, (tf.Tensor, tf.Operation))
            gate = known.get(op_of(fetch).name) if is_op else None
            if gate is None or fetch is gate.train_op:
                return fetch
            replaced.append(fetch)
            return gate.train_op

        gated = map_fetches(fetches, through_gate)
        return gated if replaced else fetches
