"""The rounds of a job: the chief opens them, and each other worker joins.

The chief opens a round when no process sends gradients of the previous round any more.
"""

import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import checkpoint_reader, repair
from slimguard.cluster.job_table import (
    CHIEF,
    PAUSE,
    Entry,
    OwnEntry,
    Reminder,
    insist,
    new_number,
)
from slimguard.cluster.session_end import aborted, error_of, stop
from slimguard.cluster.sync_replicas import Replicas
from slimguard.graph import ops
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.system.log import log

# A process whose entry does not change for this many seconds counts as dead.
_SILENCE = 6.0
# How long to wait for the first chief, or for another chief once a job has ended, in seconds.
_NO_CHIEF = 120.0

_NO_CHIEF_SEEN = (
    'the chief of this job does not train under slimguard, so %s cannot tell it of '
    'incidents, nor hear of any.'
)
_CHIEF_HAS_ENDED = 'the chief of this job had ended when %s came; it waits %d s for another'


class Chief:
    """What only the chief does in a job.

    Args:
      logdir: the folder of the checkpoints that the chief restores, or None.

    Attributes:
      rollbacks: how often the job went back to a checkpoint.
      rolled_back_for: the `Incident` that the present round began with, or None.
    """

    def __init__(self, entry: OwnEntry, replicas: Replicas, logdir: Optional[str]):
        self.rollbacks = 0
        self.rolled_back_for: Optional[Incident] = None
        self._entry = entry
        self._replicas = replicas
        self._logdir = logdir
        # Whether the new round has begun, and whether all others have left the old one.
        self._has_begun = self._is_clear = False

    @property
    def rolls_back(self) -> bool:
        """Whether the job is rolling back: an incident began a round that is not open yet."""
        return self._has_begun and self.rolled_back_for is not None

    def open_round(self, session, coordinator: Any, prepare: Callable[[Any], None]) -> None:
        """Calls `prepare` with the session, then lets the others join.

        Raises:
          tf.errors.AbortedError: a new session has to follow; the coordinator was asked to stop.
        """
        if not self._is_clear:  # the first session of this process
            insist(lambda: self.begin_round(None))
            if self._others() or (self._replicas and insist(self._replicas.have_gradients)):
                error = aborted('restoring once more, while nobody trains')
                stop(coordinator, error)
                self._begin_anew(session)
                raise error
        prepare(session)
        self._has_begun = self._is_clear = False
        insist(self._announce)

    def begin_round(self, incident: Optional[Incident]) -> None:
        """Begins a round: tells the others to leave the previous round."""
        with self._entry.lock:
            new, rollbacks = new_number(), self.rollbacks + (incident is not None)
            self._entry.write(round=new, open=False, rollbacks=rollbacks, ends=None, incident=None)
            self._entry.round, self.rollbacks = new, rollbacks
            self.rolled_back_for = incident
            self._has_begun = True

    def roll_back(self, incident: Incident) -> None:
        """Sends the job back, unless it goes back already for another process."""
        with self._entry.lock:
            if not self.rolls_back:
                self.begin_round(incident)

    def grant(self, entry: Entry) -> Exception:
        """Answers a request for a rollback; returns the error to stop the chief's session."""
        incident = Incident.from_dict(entry['incident'])
        if not self._has_checkpoint():
            self._entry.tell(ends=self._entry.round, incident=entry['incident'])
            return NanLossError(incident)
        self.begin_round(incident)
        return aborted('%s goes back to a checkpoint' % entry['worker'])

    def leave(self, session, restarts: bool) -> None:
        """Leaves the round; if a new session follows, waits until no process trains."""
        if restarts and not self._is_clear:
            self._begin_anew(session)
        try:
            self._entry.write(open=False)  # the entry stays, so that others see the new round
        except tf.errors.OpError:
            pass  # the table is gone, and the entry with it

    def _begin_anew(self, session) -> None:
        """Between two sessions: waits until no process trains, and clears tokens and gradients."""
        session.close()
        if not self._has_begun:
            insist(lambda: self.begin_round(None))
        self._wait_for_others()
        if self._replicas:
            insist(self._replicas.clear)
        if self._logdir is not None:
            repair.resume_from_good(self._logdir)
        self._is_clear = True

    def _announce(self) -> None:
        for who in self._entry.table.read():
            if who != CHIEF:
                self._entry.table.remove(who)
        self._entry.write(open=True)

    def _others(self) -> Dict[int, Entry]:
        """The entries of the other processes that take part in some round."""
        entries = insist(self._entry.table.read)
        return {w: e for w, e in entries.items() if w != CHIEF and e['round'] is not None}

    def _wait_for_others(self) -> None:
        """Waits until all other processes have left the round or are dead."""
        beats: Dict[int, Tuple[int, float]] = {}
        reminder = Reminder()
        while True:
            others = self._others()
            for who in _silent(others, beats):
                self._entry.table.remove(who)
                del others[who]
            if not others:
                return
            reminder.say('waits for %s', ', '.join(sorted(e['worker'] for e in others.values())))
            time.sleep(PAUSE)

    def _has_checkpoint(self) -> bool:
        logdir = self._logdir
        return logdir is not None and checkpoint_reader.latest_finite_checkpoint(logdir) is not None


def _silent(others: Dict[int, Entry], beats: Dict[int, Tuple[int, float]]) -> List[int]:
    """The processes whose entries have not changed for `_SILENCE` seconds.

    `beats` has each process's last beat, and when this process read it. This function updates it.
    """
    now, silent = time.monotonic(), []
    for who, entry in others.items():
        beat, since = beats.get(who, (None, now))
        if beat != entry['beat']:
            beats[who] = entry['beat'], now
        elif now - since > _SILENCE:
            silent.append(who)
    return silent


class Follower:
    """What a process other than the chief does in a job.

    Attributes:
      rollbacks: how often the job went back to a checkpoint.
    """

    def __init__(self, entry: OwnEntry):
        self.rollbacks = 0
        self._entry = entry
        self._asked_in: Optional[int] = None

    def join(self, coordinator: Any, is_done: Callable[[], bool]) -> bool:
        """Waits for an open round and joins it. Returns False if no round is open."""
        started, reminder = time.monotonic(), Reminder()
        was_there = self._entry.round is not None
        while not coordinator.should_stop():
            chief = insist(self._entry.table.read).get(CHIEF)
            waited = time.monotonic() - started
            if chief is None:
                if waited > _NO_CHIEF:
                    log().warning(_NO_CHIEF_SEEN, self._entry.worker)
                    return False
            elif chief.get('ends') is not None:
                # A process that has been in a round ends as its chief does. A new process may have
                # come for the next training: unless all steps are done, it waits for a new chief.
                if was_there or is_done() or waited > _NO_CHIEF:
                    log().info('the job has ended.')
                    stop(coordinator, error_of(chief['incident']) if was_there else None)
                    return False
                reminder.say(_CHIEF_HAS_ENDED, self._entry.worker, _NO_CHIEF)
            elif chief['open'] and chief['round'] != self._asked_in:
                self._take_part(chief)
                return True
            reminder.say('waits for the chief')
            time.sleep(PAUSE)
        return False

    def ask_to_roll_back(self, incident: Incident) -> None:
        """Asks the chief to send the whole job back to the newest good checkpoint."""
        self._asked_in = self._entry.round
        self._entry.tell(asks=self._entry.round, incident=incident.to_dict())

    def leave(self, restarts: bool) -> None:
        """Leaves the round: for good, unless a new session follows."""
        try:
            self._entry.write(round=None, done=None if restarts else self._entry.round)
        except tf.errors.OpError:
            pass  # the table is gone, and the entry with it

    def _take_part(self, chief: Entry) -> None:
        self._entry.round = chief['round']
        self.rollbacks = chief['rollbacks']
        insist(lambda: self._entry.write(round=self._entry.round, done=None))


def wait_for_initialized(graph: tf.Graph) -> Callable[[str, Optional[tf1.ConfigProto]], None]:
    """A function that waits until the chief has initialized the variables; it checks often.

    TensorFlow's own wait checks again only after half a minute.

    Args:
      graph: the graph of the training, to which an op is added.
    """
    with ops.our_scope(graph, 'job'):
        missing = tf1.report_uninitialized_variables(tf1.global_variables())
    manager = tf1.train.SessionManager(graph=graph, ready_op=missing, recovery_wait_secs=PAUSE)
    return lambda target, config: manager.wait_for_session(target, config=config).close()
