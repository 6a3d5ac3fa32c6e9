"""Passes SIGTERM and Ctrl-C to the trainings of this process, and to the other ranks.

Listener       passes the signals of this process to its trainings
SharedSignals  the signals that this process sends to the other ranks
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import weakref
from typing import Any, Callable, Dict, List, Optional, Set

import numpy as np

# By signal, Python's default handler.
_DEFAULTS: Dict[int, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


class Listener:
    """During a training, the handlers of SIGTERM and Ctrl-C, and a thread that gets the signals.

    The handlers run in the main thread, but only when it runs Python code. The thread does not wait
    for this: Python writes each signal to the wake-up descriptor at once. If the program has a
    wake-up descriptor of its own, that stays, and the thread gets no signals.

    A training has these methods: the handlers call `on_signal`; the thread calls `on_wakeup`,
    `seconds_left` and `end_in_midst_of_step`; `remove` calls `tell_saved`.

    Args:
      shorten: wraps the handler, which may raise KeyboardInterrupt.
      end_by: ends the process by a signal.

    Attributes:
      trainings: the trainings that get signals, the innermost last.
    """

    def __init__(self, shorten: Callable[[Callable], Callable], end_by: Callable[[int], None]):
        self.trainings: List[Any] = []
        self._handler = shorten(self._on_signal)
        self._end_by = end_by
        self._thread: Optional[threading.Thread] = None
        self._blocked = threading.local()  # several threads may fork at once
        if hasattr(os, 'register_at_fork'):  # Windows has no forks
            # These are called in the thread that forks, and cannot be unregistered.
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork,
                after_in_child=self._after_fork_in_child,
            )

    def add(self, training: Any) -> None:
        """Begins to send a training the signals that the program does not handle itself."""
        if self._thread is None:
            free = [n for n, default in _DEFAULTS.items() if signal.getsignal(n) == default]
            if not free:
                return
            self._open(free)
        self.trainings.append(training)

    def remove(self, training: Any) -> None:
        """Stops sending signals to a training; after the last training, restores old handlers."""
        # Only the main thread can restore handlers. In another thread, leave it to the next signal.
        is_last = self.trainings == [training] and is_main_thread()
        if is_last:
            self._close()  # afterwards the thread has read all signals
        training.tell_saved()
        self.trainings.remove(training)
        if is_last:
            self._put_handlers_back()

    def _open(self, numbers: List[int]) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._thread = threading.Thread(
            target=self._look_out, name='slimguard-signals', daemon=True
        )
        self._thread.start()
        for number in numbers:
            signal.signal(number, self._handler)
        _keep_wakeup_fd(signal.set_wakeup_fd(self._sender.fileno()))

    def _close(self) -> None:
        there = signal.set_wakeup_fd(-1)
        _keep_wakeup_fd(-1 if there == self._sender.fileno() else there)
        if self._thread is not None:
            # Closing the sender would not end the thread while a child holds a copy of it.
            self._sender.shutdown(socket.SHUT_RDWR)
            if not sys.is_finalizing():  # at finalization no other thread runs
                self._thread.join()
            self._thread = None
        self._sender.close()
        self._receiver.close()

    def _put_handlers_back(self) -> None:
        for number, default in _DEFAULTS.items():
            if self._handles(number):
                signal.signal(number, default)

    def _handles(self, number: int) -> bool:
        return signal.getsignal(number) == self._handler

    def _on_signal(self, number: int, frame) -> None:
        if self.trainings:
            self.trainings[-1].on_signal(number)
            return
        # All trainings have ended in another thread; or a handler of the program still calls this
        # one.
        if self._thread is not None:
            self._close()
        self._put_handlers_back()
        if number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        signal.signal(number, _DEFAULTS[number])
        self._end_by(number)

    def _look_out(self) -> None:
        """The loop of the thread: passes on each signal, and ends a step that takes too long."""
        while True:
            innermost = self.trainings[-1] if self.trainings else None
            self._receiver.settimeout(innermost and innermost.seconds_left())
            try:
                received = self._receiver.recv(1)
            except socket.timeout:
                if innermost is not None:
                    innermost.end_in_midst_of_step()
                continue
            if not received:
                return
            if self._handles(received[0]):
                for training in self.trainings[-1:]:
                    training.on_wakeup(received[0])

    # Around a fork.

    def _before_fork(self) -> None:
        """Blocks the signals: the child must not get one while it has the parent's handlers.

        These would pass it to the parent's thread, and the child would go on; plain Python ends it.
        """
        # Also if there are no handlers: another thread may install some before the fork.
        self._blocked.before = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULTS)

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked.before)

    def _after_fork_in_child(self) -> None:
        """Restores the default handlers in the child, before any signal reaches it."""
        try:
            self.trainings = []
            self._put_handlers_back()
            if self._thread is not None:
                self._thread = None  # the child does not have it
                self._close()
        finally:
            self._after_fork()


def _keep_wakeup_fd(descriptor: int) -> None:
    """Makes Python write signals to the program's own descriptor again; -1 stands for none."""
    with contextlib.suppress(OSError, ValueError):  # its owner has closed it
        if descriptor != -1:
            signal.set_wakeup_fd(descriptor)


def is_main_thread() -> bool:
    """Whether the calling thread is the one that gets signals."""
    return threading.current_thread() is threading.main_thread()


# The signals that end a training, in the order in which ranks send them.
NUMBERS = (signal.SIGINT, signal.SIGTERM)


class SharedSignals:
    """The signals that this process has received and not yet sent to the other ranks.

    Attributes:
      trainings: `on_shared_signal` of each is called with the number of a signal once all ranks
        know of it: in the middle of a step, in any thread.
    """

    def __init__(self) -> None:
        self._heard: Set[int] = set()
        self.trainings: Any = weakref.WeakSet()

    def hear(self, number: int) -> None:
        """Sends a signal to all ranks in their next step."""
        self._heard.add(number)

    def forget(self) -> None:
        """Drops the signals that were not sent, since their training has ended."""
        self._heard.clear()

    def heard(self) -> np.ndarray:
        """float32: for each signal that ends a training, 1 if it was received."""
        return np.array([number in self._heard for number in NUMBERS], np.float32)

    def tell(self, counts: np.ndarray) -> None:
        """Tells the trainings of this process which signals some rank has received."""
        for number, count in zip(NUMBERS, counts):
            if count:
                self._heard.discard(number)
                for training in list(self.trainings):
                    training.on_shared_signal(number)


# The signals of this process.
SIGNALS = SharedSignals()
