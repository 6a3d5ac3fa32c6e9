"""SIGTERM and Ctrl-C end a training at the end of a step, with everything saved."""

import os
import signal
import socket
import threading
from typing import Any, Callable, Dict

import tensorflow as tf

tf1 = tf.compat.v1

# How long a step may take after SIGTERM, in seconds. What sends it does not wait for ever.
_PATIENCE = 10.0


class Preemption(tf1.train.SessionRunHook):
    """While it is entered, SIGTERM and Ctrl-C let the step under way finish, and end the training.

    The loop then ends as it always does: hooks' `end` runs and the last state is saved. On leaving,
    the handlers are put back as they were, and what was asked for happens: the process ends by
    SIGTERM, or KeyboardInterrupt is raised. A second Ctrl-C raises it at once.

    A step may be waiting for input that never comes, and Python's handlers wait with it. So a
    thread looks out for SIGTERM, too: if no step ends, it saves, and ends the process itself.

    Handlers that a program has set itself are left alone, and so are threads other than the main
    one, as Python lets only that one have handlers.

    Args:
      request_stop: ends the loop after the step under way; called from a signal handler.
      save: called with the session, in a thread of its own, where no step ends.
    """

    def __init__(self, request_stop: Callable[[], None], save: Callable[[Any], None]):
        self._request_stop = request_stop
        self._save = save
        self._session = None  # type: Any
        self._asked = None  # type: Optional[int]
        self._heard = threading.Event()
        self._previous: Dict[int, Any] = {}

    # The hook.

    def after_create_session(self, session, coord):
        self._session = session

    def end(self, session):
        self._heard.set()
        if self._asked is not None:
            name = signal.Signals(self._asked).name
            tf1.logging.warning('slimguard: %s; the step is done, saving before the end.', name)

    # The signals.

    def __enter__(self) -> 'Preemption':
        if threading.current_thread() is not threading.main_thread():
            return self
        defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        for number, default in defaults.items():
            if signal.getsignal(number) == default:
                self._previous[number] = default
        if self._previous:
            self._watch()
        return self

    def __exit__(self, *_) -> None:
        self._heard.set()
        if not self._previous:
            return
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        signal.set_wakeup_fd(self._old_wakeup_fd)
        self._sender.close()  # which ends the thread
        self._thread.join()
        self._receiver.close()
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self._asked is not None:
            os.kill(os.getpid(), self._asked)  # so that the exit status tells

    def _watch(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        for number in self._previous:
            signal.signal(number, self._on_signal)
        self._old_wakeup_fd = signal.set_wakeup_fd(self._sender.fileno())
        self._thread = threading.Thread(
            target=self._look_out, name='slimguard-preemption', daemon=True
        )
        self._thread.start()

    def _on_signal(self, number: int, frame) -> None:
        if number == signal.SIGINT and self._asked == number:
            self._asked = None
            raise KeyboardInterrupt
        self._asked = number
        self._request_stop()

    def _look_out(self) -> None:
        while True:
            received = self._receiver.recv(1)
            if not received:
                return
            if self._old_wakeup_fd != -1:
                os.write(self._old_wakeup_fd, received)
            if received[0] == signal.SIGTERM and not self._heard.wait(_PATIENCE):
                tf1.logging.error(
                    'slimguard: SIGTERM, and no step has ended for %g s; saving and ending.',
                    _PATIENCE,
                )
                if self._session is not None:
                    self._save(self._session)
                os._exit(128 + signal.SIGTERM)
