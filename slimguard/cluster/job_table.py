"""The shared table of a job, on a parameter server, and the entry of this process in it.

The table has a small graph and a session of its own. So a training's graph and session stay as they
are, and a thread can use the table while a step waits. If the process that holds the table is
killed, the table is empty again.
"""

import json
import random
import threading
import time
from typing import Any, Callable, Dict, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.system.log import log

# Seconds between two reads of the shared table.
PAUSE = 0.2
# How long an answer may take, in milliseconds; a process that has ended never answers.
_PATIENCE = 3000
# How often a process logs that it waits, in seconds.
_REMINDER = 30.0

# The errors of a call to a process that has ended or restarted.
GONE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)

# The number of the chief's entry; the other processes take random numbers.
CHIEF = 0

Entry = Dict[str, Any]


class SharedTable:
    """The entries of a job's processes, by the number of the process. Threads may share it.

    All methods raise a `tf.errors.OpError` if the process that holds the table does not answer;
    the call may be repeated.

    Args:
      target: the session target of a server of the job.
      device: where the table is, such as ``'/job:ps/task:0'``.

    Attributes:
      graph: the table's graph. Before the first use, callers may add other ops to it.
    """

    def __init__(self, target: str, device: str):
        self._target = target
        self.graph = tf.Graph()
        self._lock = threading.RLock()
        self._session: Any = None
        with self.graph.as_default(), tf.device(device):
            table = tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.int64, value_dtype=tf.string, shared_name='slimguard_board'
            )
            self._who = tf1.placeholder(tf.int64, [1])
            self._text = tf1.placeholder(tf.string, [1])
            self._write = tf.raw_ops.LookupTableInsertV2(
                table_handle=table, keys=self._who, values=self._text
            )
            with tf.control_dependencies([self._write]):
                self._exchange = tf.raw_ops.LookupTableExportV2(
                    table_handle=table, Tkeys=tf.int64, Tvalues=tf.string
                )
            self._remove = tf.raw_ops.LookupTableRemoveV2(table_handle=table, keys=self._who)
            self._read = tf.raw_ops.LookupTableExportV2(
                table_handle=table, Tkeys=tf.int64, Tvalues=tf.string
            )

    def read(self) -> Dict[int, Entry]:
        return _entries(*self.run(self._read))

    def write(self, who: int, entry: Entry) -> None:
        self.run(self._write, self._feeds(who, entry))

    def exchange(self, who: int, entry: Entry) -> Dict[int, Entry]:
        """Writes an entry and reads all, in one run."""
        return _entries(*self.run(self._exchange, self._feeds(who, entry)))

    def remove(self, who: int) -> None:
        self.run(self._remove, {self._who: [who]})

    def run(self, fetches, feed_dict=None):
        """Runs fetches in the table's graph."""
        with self._lock:
            if self._session is None:
                self._session = tf1.Session(self._target, graph=self.graph, config=self._config())
            try:
                return self._session.run(fetches, feed_dict)
            except tf.errors.OpError:
                self.close()
                raise

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                try:
                    session.close()
                except tf.errors.OpError:
                    pass  # the server has restarted or ended

    def _feeds(self, who: int, entry: Entry) -> dict:
        return {self._who: [who], self._text: [json.dumps(entry)]}

    def _config(self) -> tf1.ConfigProto:
        # Name only the jobs that hold our ops: a session waits for all processes of its jobs.
        devices = {tf1.DeviceSpec.from_string(op.device) for op in self.graph.get_operations()}
        jobs = sorted({'/job:' + device.job for device in devices if device.job})
        return tf1.ConfigProto(device_filters=jobs, operation_timeout_in_ms=_PATIENCE)


def _entries(who, texts) -> Dict[int, Entry]:
    return {int(w): json.loads(text.decode('utf-8')) for w, text in zip(who, texts)}


class OwnEntry:
    """The one entry that this process writes. Threads may share it.

    Args:
      table: the shared table.
      is_chief: whether this process is the chief.
      worker: the name of the process, such as ``'/job:worker/task:1'``.

    Attributes:
      table: the shared table.
      number: the key of the entry in the table.
      worker: the name of the process.
      round: the number of the round that the process takes part in, or None.
      lock: held while the entry or the round changes.
    """

    def __init__(self, table: SharedTable, is_chief: bool, worker: str):
        self.table = table
        self.number = CHIEF if is_chief else new_number()
        self.worker = worker
        self.round: Optional[int] = None
        self.lock = threading.RLock()
        self._entry: Entry = {'round': None, 'open': False, 'beat': 0, 'worker': worker}

    def write(self, **news) -> None:
        """Changes the entry.

        Raises:
          tf.errors.OpError: if the process that holds the table does not answer.
        """
        with self.lock:
            self._entry.update(news)
            self.table.write(self.number, self._entry)

    def tell(self, **news) -> None:
        """As `write`, but an error is logged, and not raised."""
        try:
            self.write(**news)
        except tf.errors.OpError as error:
            log().error('the other processes could not be told: %s', error)

    def beat(self) -> Dict[int, Entry]:
        """Shows that this process is alive; returns all entries. Raises as `write` does."""
        with self.lock:
            self._entry['beat'] += 1
            return self.table.exchange(self.number, self._entry)


def new_number() -> int:
    """A random, unique number for a process or a round."""
    return random.SystemRandom().randrange(1, 2**53)


def insist(call: Callable[[], Any]) -> Any:
    """Repeats a call until the shared table answers, and returns the answer."""
    reminder = Reminder()
    while True:
        try:
            return call()
        except GONE as error:
            reminder.say('waits for a parameter server: %s', error)
            time.sleep(PAUSE)


class Reminder:
    """Logs now and then what a process waits for."""

    def __init__(self):
        self._next = time.monotonic() + _REMINDER / 10

    def say(self, text: str, *values) -> None:
        if time.monotonic() > self._next:
            self._next = time.monotonic() + _REMINDER
            log().info(text, *values)
