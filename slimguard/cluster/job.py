"""A job of several processes: each learns what happens to the others.

TensorFlow's processes share variables on parameter servers, but do not know of each other. If one
ends with an error, the others continue, or wait forever for its gradients. If one restores a
checkpoint, the others write gradients of weights that no longer exist. Here they coordinate through
the entries of a :class:`~slimguard.cluster.job_table.SharedTable`.

How it works
------------
Training goes in *rounds*: a round begins when the chief has restored or initialized the variables,
and lasts until the chief has to do so again. The chief *opens* a round once all other processes
have left the one before, so nobody writes gradients of older weights. Each process has a thread
that reads the table five times a second, and asks the coordinator to stop if need be: with no error
if the job ended well, with a `NanLossError` if it ended for an incident, with an `AbortedError` if
a new round begins. On an `AbortedError` both slim's loop and a `MonitoredSession` make a new
session, and the chief restores the newest checkpoint.

A process writes only its own entry, so two never write at once:

* ``round``: the number of the round it takes part in, or None.
* ``open``: whether others may join; only the chief's entry has it.
* ``rollbacks``: how often the job went back to a checkpoint; only the chief's entry has it.
* ``ends``, ``asks``: the number of the round in which it ended the job, or asks to go back;
  ``incident``: the reason for either, or None after a good end.
* ``done``: the number of the round that it left for good.
* ``beat``: a number that grows as long as the process is alive.
"""

import threading
from typing import Any, Callable, Dict, NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.cluster.job_table import CHIEF, GONE, PAUSE, Entry, OwnEntry, SharedTable
from slimguard.cluster.rounds import Chief, Follower
from slimguard.cluster.session_end import aborted, call_when_joined, error_of, stop
from slimguard.cluster.sync_replicas import Replicas
from slimguard.incidents.incident import Incident


class Place(NamedTuple):
    """The place of a process in a job.

    Attributes:
      worker: its name, such as ``'/job:worker/task:1'``.
      table: the device of the shared table, such as ``'/job:ps/task:0'``.
    """

    worker: str
    table: str

    @property
    def is_chief(self) -> bool:
        """Whether the process is the chief by its name, as TensorFlow's own libraries decide it."""
        device = tf1.DeviceSpec.from_string(self.worker)
        return device.job in ('chief', 'master') or (device.job == 'worker' and device.task == 0)


def is_remote(target: str) -> bool:
    """Whether sessions on `target` run on a server."""
    return '://' in target


def place_of(graph: tf.Graph, near: str) -> Optional[Place]:
    """The place of the process that computes on the device `near`; None if it trains alone."""
    step = graphs.global_step(graph)
    if step is None:
        return None
    holder, worker = tf1.DeviceSpec.from_string(step.device), tf1.DeviceSpec.from_string(near)
    if holder.job is None or worker.job is None or worker.task is None:
        return None
    return Place(
        '/job:%s/task:%d' % (worker.job, worker.task),
        '/job:%s/task:%d' % (holder.job, holder.task or 0),
    )


def job_of(
    session,
    near: str,
    is_chief: Optional[bool],
    logdir: Optional[str],
) -> Optional['Job']:
    """This process's part in a job; None if it trains alone.

    Args:
      session: a session on the graph of the training, which has a global step.
      near: the device of something that the process computes, such as the loss.
      is_chief: whether the process is the chief; None if its device tells.
      logdir: the folder of the checkpoints that the chief restores, or None.
    """
    graph, target = session.graph, tf.compat.as_str_any(session.sess_str)
    place = place_of(graph, near) if is_remote(target) else None
    if place is None:
        return None
    job = getattr(graph, '_slimguard_job', None)  # several hooks share one part
    if job is None or job.target != target:
        is_chief = place.is_chief if is_chief is None else is_chief
        job = graph._slimguard_job = Job(target, place, is_chief, graph, logdir)
    return job


class Watch:
    """Reads the shared table, in a thread of its own, until this process leaves the round.

    Args:
      entry: the entry of this process.
      coordinator: the coordinator of the session, which is asked to stop.
      chief: answers the others, if this process is the chief; else None.

    Attributes:
      left: set when this process leaves the round.
    """

    def __init__(
        self, entry: OwnEntry, replicas: Replicas, coordinator: Any, chief: Optional[Chief]
    ):
        self.coordinator = coordinator
        self.left = threading.Event()
        self._entry = entry
        self._replicas = replicas
        self._chief = chief
        self._hurries = False

    def start(self) -> None:
        threading.Thread(target=self._run, name='slimguard-job', daemon=True).start()

    def check(self) -> None:
        """Raises the error that the coordinator was asked to stop with, if any."""
        self.coordinator.raise_requested_exception()

    def _run(self) -> None:
        while not self.left.wait(PAUSE):
            with self._entry.lock:
                try:
                    if not self.left.is_set():
                        self._look()
                except GONE:
                    pass  # the process with the table has ended; the step will fail, too

    def _look(self) -> None:
        entries = self._entry.beat()
        self._look_at(entries)
        # A worker that is done sends no more gradients, and a step may be waiting for them.
        is_deserted = any(entry.get('done') == self._entry.round for entry in entries.values())
        if self._replicas and (self._hurries or is_deserted or self._has_failed()):
            self._replicas.release()

    def _has_failed(self) -> bool:
        """Whether a thread failed. If it was the one that hands out tokens, steps wait forever."""
        try:
            self.check()
        except Exception:
            return True
        return False

    def _look_at(self, entries: Dict[int, Entry]) -> None:
        """Asks the coordinator to stop if one of the entries says so."""
        if self.coordinator.should_stop():
            return
        for who, entry in entries.items():
            if who != self._entry.number and entry.get('ends') == self._entry.round:
                if self._chief is not None:  # for processes that join late
                    self._entry.tell(ends=self._entry.round, incident=entry['incident'])
                return self._hurry(error_of(entry['incident']))
            if self._chief is not None and entry.get('asks') == self._entry.round:
                return self._hurry(self._chief.grant(entry))
        chief = entries.get(CHIEF)
        if self._chief is None and chief is not None and chief['round'] != self._entry.round:
            self._hurry(aborted('the chief begins a new round'))

    def _hurry(self, error: Optional[Exception]) -> None:
        # A step may be waiting for a process that has ended; `_look` then gives it a token.
        self._hurries = True
        stop(self.coordinator, error)


class Job:
    """One process's part in a job.

    Args:
      target: the session target of the process's server, such as ``'grpc://localhost:2222'``.
      place: the place of the process.
      is_chief: whether it is the chief, which restores and initializes the variables.
      graph: the graph of the training; it is only read.
      logdir: the folder of the checkpoints that the chief restores, or None.

    Attributes:
      worker: the name of the process, such as ``'/job:worker/task:1'``.
      is_chief: whether it is the chief.
    """

    def __init__(
        self,
        target: str,
        place: Place,
        is_chief: bool,
        graph: tf.Graph,
        logdir: Optional[str],
    ):
        self.target = target
        self.worker = place.worker
        self.is_chief = is_chief
        table = SharedTable(target, place.table)
        self._replicas = Replicas(graph, table)
        self._entry = OwnEntry(table, is_chief, place.worker)
        self._chief = Chief(self._entry, self._replicas, logdir) if is_chief else None
        self._follower = Follower(self._entry)
        self._session: Any = None
        self._watch: Optional[Watch] = None

    def enter(
        self,
        session,
        coordinator,
        prepare: Callable[[Any], None],
        is_done: Callable[[Any], bool],
        before_close: Callable[[Any], None],
    ) -> None:
        """Takes part in a round with a new session; returns once the training may go on.

        Args:
          session: the new session.
          coordinator: its coordinator, which is asked to stop when the round or the job is over.
          prepare: called with the session by the chief, before anybody trains.
          is_done: called with the session by a process that joins after the job ended; returns
            whether all steps are done.
          before_close: called with the open session once its threads have ended, or do not end; it
            may be called several times.

        Raises:
          tf.errors.AbortedError: a new session has to follow; the coordinator was asked to stop.
        """
        if session is self._session:
            return
        self._session = session
        watch = self._watch = Watch(self._entry, self._replicas, coordinator, self._chief)
        # The chief's queue runner waits for gradients that no worker sends any more: only closing
        # the session ends its thread.
        closes_session = bool(self._replicas)
        call_when_joined(
            session,
            coordinator,
            lambda: before_close(session),
            lambda restarts: self._leave(session, restarts),
            closes_session,
        )
        if self._chief is not None:
            self._chief.open_round(session, coordinator, prepare)
        elif not self._follower.join(coordinator, lambda: is_done(session)):
            return
        watch.start()

    @property
    def takes_part(self) -> bool:
        """Whether this process is in a round; False if the chief trains without slimguard."""
        return self._entry.round is not None

    @property
    def rollbacks(self) -> int:
        """How often the job went back to a checkpoint."""
        return (self._chief or self._follower).rollbacks

    @property
    def rolled_back_for(self) -> Optional[Incident]:
        """The `Incident` that the present round began with, or None; only the chief knows it."""
        return None if self._chief is None else self._chief.rolled_back_for

    @property
    def rolls_back(self) -> bool:
        """Whether the next round begins with a rollback; only the chief knows it."""
        return self._chief is not None and self._chief.rolls_back

    def end(self, incident: Optional[Incident] = None) -> None:
        """Ends the job for all processes: for an incident, or because all steps are done."""
        self._entry.tell(
            ends=self._entry.round, incident=None if incident is None else incident.to_dict()
        )

    def roll_back(self, incident: Incident) -> None:
        """Sends the whole job back to the newest good checkpoint.

        Raises:
          tf.errors.AbortedError: always; it leads to a new session, and to a new round.
        """
        if self._chief is not None:
            self._chief.roll_back(incident)
        else:
            self._follower.ask_to_roll_back(incident)
        error = aborted('going back to a checkpoint')
        if self._watch is not None:
            stop(self._watch.coordinator, error)
        raise error

    def check(self) -> None:
        """Raises the error that the coordinator was asked to stop with, if any."""
        if self._watch is not None:
            self._watch.check()

    def _leave(self, session, restarts: bool) -> None:
        assert self._watch is not None  # `enter` made it
        with self._entry.lock:
            if self._watch.left.is_set():
                return
            self._watch.left.set()
        if self._chief is not None:
            self._chief.leave(session, restarts)
        else:
            self._follower.leave(restarts)
        self._entry.table.close()
