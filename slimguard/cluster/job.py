"""A job of several processes: what happens to one of them, the others hear of.

TensorFlow's processes share variables on parameter servers and know nothing of each other: one that
ends with an error leaves its peers training, or waiting for its gradients for ever; one that goes
back to a checkpoint has its peers write gradients of the weights that it just threw away. Here they
agree, through notes on a :class:`~slimguard.cluster.job_table.Board`.

How it works
------------
Training goes in *rounds*: a round begins when the chief has restored or initialized the variables,
and lasts until it has to do so again. The chief *opens* a round once all other processes have left
the one before, so nobody writes what was computed from older weights. Each process reads the
board five times a second, in a thread of its own, and asks its coordinator to stop where need be:
with no error, where the job ended; with an `AbortedError`, where a new round begins. Both slim's
loop and a `MonitoredSession` answer that with a new session, for which the chief restores the
newest checkpoint.

A process writes only its own note, so two never write at once:

* ``round``: the number of the round it takes part in, or None.
* ``open``: whether others may join (the chief's).
* ``rollbacks``: how often the job went back to a checkpoint (the chief's).
* ``ends``, ``asks``: the number of the round in which it ended the job, or asks to go back; and
  ``incident``, why, unless it ended well.
* ``done``: the number of the round that it left for good.
* ``beat``: a number that grows while it lives.
"""

import random
import threading
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import checkpoint_reader, repair
from slimguard.cluster.job_table import Board, Note
from slimguard.cluster.sync_replicas import Replicas
from slimguard.graph import ops
from slimguard.incidents.incident import Incident, NanLossError

# Where the chief's note is; the other processes take random numbers.
_CHIEF = 0
# Seconds between two looks at the board.
_PAUSE = 0.2
# A process whose note does not change for so many seconds is dead.
_SILENCE = 6.0
# How long threads may take to end by themselves, in seconds, before the session is closed on them.
_GRACE = 2.0
# How long to wait for a chief that nothing is known of, in seconds.
_NO_CHIEF = 120.0
# How often who waits says so, in seconds.
_REMINDER = 30.0

# What a call says if the process it went to is gone, or was started anew.
_GONE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)

# What ends a session, and not the training.
_RESTARTING = (tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.UnavailableError)

_NO_CHIEF_SEEN = (
    'slimguard: the chief of this job does not train under slimguard, so %s cannot tell it of '
    'incidents, nor hear of any.'
)


class Place(NamedTuple):
    """Where a process of a job stands.

    Attributes:
      worker: its name, such as ``'/job:worker/task:1'``.
      board: the device of the board, such as ``'/job:ps/task:0'``.
    """

    worker: str
    board: str

    @property
    def is_chief(self) -> bool:
        """Whether it is the chief by its name, as TensorFlow's own libraries choose it."""
        device = tf1.DeviceSpec.from_string(self.worker)
        return device.job in ('chief', 'master') or (device.job == 'worker' and device.task == 0)


def is_remote(target: str) -> bool:
    """Whether sessions on `target` are those of a server."""
    return '://' in target


class Readiness:
    """Waits until the chief has initialized the variables, and looks often.

    Who looks too early otherwise looks again half a minute later.

    Args:
      graph: the graph of the training, to which an op is added.
    """

    def __init__(self, graph: tf.Graph):
        with ops.our_scope(graph, 'job'):
            missing = tf1.report_uninitialized_variables(tf1.global_variables())
        self._manager = tf1.train.SessionManager(
            graph=graph, ready_op=missing, recovery_wait_secs=_PAUSE
        )

    def wait(self, target: str, config: Optional[tf1.ConfigProto]) -> None:
        self._manager.wait_for_session(target, config=config).close()


def job_of(
    session,
    near: str,
    is_chief: Optional[bool],
    logdir: Optional[str],
) -> Optional['Job']:
    """The part in a job that a process has; None if it trains alone.

    Args:
      session: a session on the graph of the training, which has a global step.
      near: the device of something that the process computes, such as the loss.
      is_chief: whether the process is the chief; None for what its device says.
      logdir: where the checkpoints are that the chief restores, or None.
    """
    graph, target = session.graph, tf.compat.as_str_any(session.sess_str)
    place = _place_in(graph, near) if is_remote(target) else None
    if place is None:
        return None
    job = getattr(graph, '_slimguard_job', None)  # several hooks have one part
    if job is None or job.target != target:
        is_chief = place.is_chief if is_chief is None else is_chief
        job = graph._slimguard_job = Job(target, place, is_chief, graph, logdir)
    return job


def _place_in(graph: tf.Graph, near: str) -> Optional[Place]:
    step = tf1.train.get_global_step(graph)
    if step is None:
        return None
    holder, worker = tf1.DeviceSpec.from_string(step.device), tf1.DeviceSpec.from_string(near)
    if holder.job is None or worker.job is None or worker.task is None:
        return None
    return Place(
        '/job:%s/task:%d' % (worker.job, worker.task),
        '/job:%s/task:%d' % (holder.job, holder.task or 0),
    )


class Job:
    """One process's part in a job.

    Args:
      target: the session target of the process's server, such as ``'grpc://localhost:2222'``.
      place: where the process stands.
      is_chief: whether it is the chief, which restores and initializes the variables.
      graph: the graph of the training; it is only read.
      logdir: where the checkpoints are that the chief restores, or None.

    Attributes:
      worker: the name of the process, such as ``'/job:worker/task:1'``.
      is_chief: whether it is the chief.
      rollbacks: how often the job went back to a checkpoint.
      went_back: the `Incident` that the present round began with, or None.
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
        self.rollbacks = 0
        self.went_back: Optional[Incident] = None
        self.is_chief = is_chief
        self._me = _CHIEF if is_chief else _number()
        self._board = Board(target, place.board)
        self._replicas = Replicas(graph, self._board)
        self._logdir = logdir
        self._note: Note = {'round': None, 'open': False, 'beat': 0, 'worker': self.worker}
        self._lock = threading.RLock()
        self._round: Optional[int] = None
        self._asked_in: Optional[int] = None
        # What the chief has done on the way to an open round.
        self._has_begun = self._is_clear = False
        self._session: Any = None
        self._coordinator: Any = None
        self._left = threading.Event()
        self._hurries = False

    # What the training calls.

    def enter(
        self,
        session,
        coordinator,
        prepare: Callable[[Any], None],
        is_done: Callable[[Any], bool],
    ) -> None:
        """Takes part in a round with a new session; returns once the training may go on.

        Args:
          session: the new session.
          coordinator: its coordinator, which is asked to stop when the round or the job is over.
          prepare: called with the session by the chief, before anybody trains.
          is_done: called with the session by who comes late: whether nothing is left to do.

        Raises:
          tf.errors.AbortedError: the session has to be made once more; the coordinator was told.
        """
        if session is self._session:
            return
        self._session, self._coordinator = session, coordinator
        self._left, self._hurries = threading.Event(), False
        self._leave_when_joined(session, coordinator)
        if self.is_chief:
            self._open(session, prepare)
        elif not self._join(lambda: is_done(session)):
            return
        threading.Thread(
            target=self._watch, args=[self._left], name='slimguard-job', daemon=True
        ).start()

    @property
    def takes_part(self) -> bool:
        """Whether this process is in a round; it is in none where the chief has no part either."""
        return self._round is not None

    def end(self, incident: Optional[Incident] = None) -> None:
        """Ends the job: for a reason, or because it is done. The other processes end as well."""
        self._tell(ends=self._round, incident=None if incident is None else incident.to_dict())

    def roll_back(self, incident: Incident) -> None:
        """Sends the whole job back to the newest good checkpoint.

        Raises:
          tf.errors.AbortedError: always; it leads to a new session, and to a new round.
        """
        self._asked_in = self._round
        if self.is_chief:
            self._begin_round(incident)
        else:
            self._tell(asks=self._round, incident=incident.to_dict())
        error = _aborted('going back to a checkpoint')
        _stop(self._coordinator, error)
        raise error

    def check(self) -> None:
        """Raises what the coordinator was asked to stop with, if anything."""
        if self._coordinator is not None:
            self._coordinator.raise_requested_exception()

    # The chief.

    def _open(self, session, prepare: Callable[[Any], None]) -> None:
        if not self._is_clear:  # the first session of this process
            _insist(lambda: self._begin_round(None))
            if self._others() or (self._replicas and _insist(self._replicas.have_gradients)):
                error = _aborted('restoring once more, while nobody trains')
                _stop(self._coordinator, error)
                self._begin_anew(session)
                raise error
        prepare(session)
        self._has_begun = self._is_clear = False
        _insist(self._announce)

    def _begin_anew(self, session) -> None:
        """Between two sessions: waits until nobody trains, and leaves nothing of what they did."""
        session.close()
        if not self._has_begun:
            _insist(lambda: self._begin_round(None))
        self._wait_for_others()
        if self._replicas:
            _insist(self._replicas.clear)
        if self._logdir is not None:
            repair.resume_from_good(self._logdir)
        self._is_clear = True

    def _announce(self) -> None:
        for who in self._board.read():
            if who != self._me:
                self._board.remove(who)
        self._write(open=True)

    def _begin_round(self, incident: Optional[Incident]) -> None:
        """Tells the others to leave."""
        with self._lock:
            new, rollbacks = _number(), self.rollbacks + (incident is not None)
            self._write(round=new, open=False, rollbacks=rollbacks, ends=None, incident=None)
            self._round, self.rollbacks = new, rollbacks
            self.went_back = incident
            self._has_begun = True

    def _others(self) -> Dict[int, Note]:
        """The notes of the other processes that take part in some round."""
        notes = _insist(self._board.read)
        return {who: n for who, n in notes.items() if who != _CHIEF and n['round'] is not None}

    def _wait_for_others(self) -> None:
        """Waits until all others have left, or are dead."""
        beats: Dict[int, Tuple[int, float]] = {}
        reminder = _Reminder()
        while True:
            others = self._others()
            now = time.monotonic()
            for who, note in list(others.items()):
                beat, since = beats.get(who, (None, now))
                if beat != note['beat']:
                    beats[who] = note['beat'], now
                elif now - since > _SILENCE:
                    self._board.remove(who)
                    del others[who]
            if not others:
                return
            reminder.say('waits for %s', ', '.join(sorted(n['worker'] for n in others.values())))
            time.sleep(_PAUSE)

    # The others.

    def _join(self, is_done: Callable[[], bool]) -> bool:
        """Waits for an open round and joins it. False if there is none to join."""
        started, reminder = time.monotonic(), _Reminder()
        was_there = self._round is not None
        while not self._coordinator.should_stop():
            chief = _insist(self._board.read).get(_CHIEF)
            waited = time.monotonic() - started
            if chief is None:
                if waited > _NO_CHIEF:
                    tf1.logging.warning(_NO_CHIEF_SEEN, self.worker)
                    return False
            elif chief.get('ends') is not None:
                # Who was there before it ended is done; who is new may have come for the next.
                if was_there or is_done() or waited > _NO_CHIEF:
                    tf1.logging.info('slimguard: the job has ended.')
                    self._coordinator.request_stop()
                    return False
            elif chief['open'] and chief['round'] != self._asked_in:
                self._round = chief['round']
                self.rollbacks = chief['rollbacks']
                _insist(lambda: self._write(round=self._round, done=None))
                return True
            reminder.say('waits for the chief')
            time.sleep(_PAUSE)
        return False

    # All.

    def _watch(self, left: threading.Event) -> None:
        """Reads the board as long as this process takes part in a round."""
        while not left.wait(_PAUSE):
            with self._lock:
                try:
                    if not left.is_set():
                        self._look()
                except _GONE:
                    pass  # whoever holds the board is gone, as the step under way will see

    def _look(self) -> None:
        self._note['beat'] += 1
        notes = self._board.exchange(self._me, self._note)
        self._look_at(notes)
        # Who is done sends no more gradients.
        is_deserted = any(note.get('done') == self._round for note in notes.values())
        if self._replicas and (self._hurries or is_deserted or self._has_failed()):
            self._replicas.release()

    def _has_failed(self) -> bool:
        """Whether a thread met an error. If it was the one that hands out tokens, a step waits."""
        try:
            self.check()
        except Exception:
            return True
        return False

    def _look_at(self, notes: Dict[int, Note]) -> None:
        """Asks the coordinator to stop if one of the notes says so."""
        chief = notes.get(_CHIEF)
        if self._coordinator.should_stop():
            return
        for who, note in notes.items():
            if who != self._me and note.get('ends') == self._round:
                if self.is_chief:  # for those who come late
                    self._tell(ends=self._round, incident=note['incident'])
                return self._hurry(_error_of(note['incident']))
            if self.is_chief and note.get('asks') == self._round:
                return self._hurry(self._grant(note))
        if not self.is_chief and chief is not None and chief['round'] != self._round:
            self._hurry(_aborted('the chief begins a new round'))

    def _grant(self, note: Note) -> Exception:
        """The chief's answer to a process that asks to go back."""
        if not self._has_checkpoint():
            self._tell(ends=self._round, incident=note['incident'])
            return NanLossError(Incident.from_dict(note['incident']))
        self._begin_round(Incident.from_dict(note['incident']))
        return _aborted('%s goes back to a checkpoint' % note['worker'])

    def _has_checkpoint(self) -> bool:
        logdir = self._logdir
        return logdir is not None and checkpoint_reader.latest_finite_checkpoint(logdir) is not None

    def _hurry(self, error: Optional[Exception]) -> None:
        # A step may be waiting for a peer that has ended; it gets what it waits for.
        self._hurries = True
        _stop(self._coordinator, error)

    def _leave_when_joined(self, session, coordinator) -> None:
        """Leaves when the coordinator's threads have ended, which it sees to."""

        def join(*args, **kwargs):
            joined = threading.Event()
            if self._replicas:
                # The chief's thread waits for gradients that nobody sends any more.
                arguments = [session, joined]
                threading.Thread(target=_close_in_time, args=arguments, daemon=True).start()
            try:
                type(coordinator).join(coordinator, *args, **kwargs)
            except _RESTARTING as error:
                joined.set()
                self._leave(session, restarts=True)
                if isinstance(error, tf.errors.AbortedError):
                    raise
                raise as_aborted(error) from error
            finally:
                joined.set()
                self._leave(session, restarts=False)

        coordinator.join = join

    def _leave(self, session, restarts: bool) -> None:
        with self._lock:
            if self._left.is_set():
                return
            self._left.set()
        if self.is_chief and restarts and not self._is_clear:
            self._begin_anew(session)
        try:
            if self.is_chief:
                self._write(open=False)  # its word that a round begins has to stay
            else:
                self._write(round=None, done=None if restarts else self._round)
        except tf.errors.OpError:
            pass  # the board is gone, and the note with it
        self._board.close()

    def _tell(self, **news) -> None:
        try:
            self._write(**news)
        except tf.errors.OpError as error:
            tf1.logging.error('slimguard: the other processes could not be told: %s', error)

    def _write(self, **news) -> None:
        with self._lock:
            self._note.update(news)
            self._board.write(self._me, self._note)


def _insist(call: Callable[[], Any]) -> Any:
    """Calls until the board answers."""
    reminder = _Reminder()
    while True:
        try:
            return call()
        except _GONE as error:
            reminder.say('waits for a parameter server: %s', error)
            time.sleep(_PAUSE)


class _Reminder:
    """Says now and then what a process waits for."""

    def __init__(self):
        self._next = time.monotonic() + _REMINDER / 10

    def say(self, text: str, *values) -> None:
        if time.monotonic() > self._next:
            self._next = time.monotonic() + _REMINDER
            tf1.logging.info('slimguard: ' + text, *values)


def _number() -> int:
    """A number that no other process chooses, and no other round has."""
    return random.SystemRandom().randrange(1, 2**53)


def as_aborted(error: tf.errors.OpError) -> tf.errors.AbortedError:
    """The same error as the one that slim answers with a new session."""
    return tf.errors.AbortedError(error.node_def, error.op, error.message)


def _aborted(why: str) -> tf.errors.AbortedError:
    return tf.errors.AbortedError(None, None, 'slimguard: ' + why)


def _error_of(incident: Optional[Dict[str, Any]]) -> Optional[NanLossError]:
    return None if incident is None else NanLossError(Incident.from_dict(incident))


def _stop(coordinator, error: Optional[Exception]) -> None:
    if error is None:
        coordinator.request_stop()
        return
    try:
        raise error  # a coordinator takes errors that were raised
    except type(error) as raised:
        coordinator.request_stop(raised)


def _close_in_time(session, joined: threading.Event) -> None:
    """Closes a session on the threads that wait in it, but on none that may be saving."""
    if joined.wait(_GRACE):
        return
    while any(isinstance(thread, tf1.train.LooperThread) for thread in threading.enumerate()):
        if joined.wait(_PAUSE):
            return
    session.close()
