"""SIGTERM and Ctrl-C, told twice: to the main thread, and to a thread that does not wait for it."""

import collections
import os
import signal
import socket
import sys
import threading
from typing import Any, Callable, Counter, Dict, List

_OURS = {signal.SIGTERM, signal.SIGINT}
# Those that are entered in this process: what a child leaves.
_entered: List['SignalWatch'] = []
# By thread, as several may fork at once: the signals that are held up meanwhile.
_held_up = threading.local()


class SignalListener:
    """What a `SignalWatch` tells of signals; to be overridden."""

    def on_signal(self, number: int) -> None:
        """Called by the handler: in the main thread, once it runs Python."""
        raise NotImplementedError

    def on_wakeup(self, number: int) -> None:
        """Called at once, in a thread that is there for nothing else."""
        raise NotImplementedError


class SignalWatch:
    """Has the handlers of SIGTERM and Ctrl-C, and a thread that hears of them, between two calls.

    Handlers that a program has set itself stay, and so does what was to be woken up before. A child
    that the process forks meanwhile leaves the watch at once. In other threads than the main one
    nothing is watched, as Python lets only that one have handlers.

    Args:
      listener: hears of the signals.
    """

    def __init__(self, listener: SignalListener):
        self.listener = listener
        self._previous: Dict[int, Any] = {}
        self._threads: List[threading.Thread] = []
        self._old_wakeup_fd = -1
        # What we have sent ourselves, as often as it is still to come.
        self._sent: Counter[int] = collections.Counter()
        self._is_hearing_out = False
        self._process = os.getpid()

    @property
    def is_entered(self) -> bool:
        """Whether it watches, in this process."""
        return self in _entered

    def enter(self) -> None:
        """Begins to watch the signals that no handler of the program's own is there for."""
        if not is_main_thread():
            return
        previous = {}
        defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        ours = [entered._on_signal for entered in _entered]
        for number, default in defaults.items():
            handler = signal.getsignal(number)
            if handler == default or handler in ours:
                previous[number] = handler
        if previous:
            self._watch(previous)

    def leave(self) -> None:
        """Puts back what was there before. Call `join` after it."""
        self._put_back()
        _entered.remove(self)

    def join(self) -> None:
        """Waits for the threads to end."""
        # Closing the sender would not end the thread while a child holds a copy of it.
        self._sender.shutdown(socket.SHUT_RDWR)
        if sys.is_finalizing():  # a session that is freed with all else: no other thread runs
            return
        for thread in self._threads:  # the first adds to them until it ends
            thread.join()
        self._close()

    def start_or_do(self, target: Callable[..., None], *args) -> None:
        """Calls `target` in another thread, which `join` waits for; or in this one."""
        try:
            self._start(target, *args)
        except RuntimeError:  # the process may have no more threads
            target(*args)

    def remind(self, number: int) -> None:
        """Sends the main thread a signal once more.

        Python calls the handler once for two that come close together. And one that comes just
        before a system call waits, or that another thread takes, has it called when that call
        ends; this one ends it.
        """
        if self._handles(number):
            self._send(number)

    def hear_out(self) -> None:
        """Has the handlers run of all signals that have come. For a handler that is to `leave`.

        Of two that came at once Python calls one handler after the other. Where the first puts back
        what was there before, Python fails with the second, and that is lost.
        """
        if not self._handles(signal.SIGINT) or _is_held_up(signal.SIGINT):
            return
        # Any signal has Python look for all of them. The handler passes over this one.
        self._is_hearing_out = True
        try:
            self._send(signal.SIGINT)
        finally:
            self._is_hearing_out = False

    def _send(self, number: int) -> None:
        """Sends the main thread a signal, without waking the thread that listens for signals."""
        main = threading.main_thread().ident
        if main is not None and hasattr(signal, 'pthread_kill'):  # not on Windows
            self._sent[number] += 1
            signal.pthread_kill(main, number)

    # The handlers.

    def _watch(self, previous: Dict[int, Any]) -> None:
        self._process = os.getpid()
        self._previous = previous
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._start(self._look_out)
        _entered.append(self)  # before there is anything that a child would have to leave
        for number in previous:
            signal.signal(number, self._on_signal)
        self._old_wakeup_fd = signal.set_wakeup_fd(self._sender.fileno())

    def _put_back(self) -> None:
        """Puts back what was there before, where it is ours that is there now."""
        for number, previous in self._previous.items():
            if self._handles(number):
                signal.signal(number, previous)
        there = signal.set_wakeup_fd(-1)
        try:
            ours = there == self._sender.fileno()
            signal.set_wakeup_fd(self._old_wakeup_fd if ours else there)
        except (OSError, ValueError):
            pass  # whose it was has closed it

    def _handles(self, number: int) -> bool:
        return signal.getsignal(number) == self._on_signal

    def _close(self) -> None:
        self._sender.close()
        self._receiver.close()

    def _leave_in_child(self) -> None:
        """Leaves, in a child, which has no such thread, and which nobody has asked to end."""
        try:
            self._put_back()
        finally:
            self._close()

    def _on_signal(self, number: int, frame) -> None:
        if self not in _entered or os.getpid() != self._process:
            # A handler of the program's own still calls us, or a library forked without Python.
            _act_as(self._previous[number], number, frame)
            return
        if self._is_hearing_out and number == signal.SIGINT:
            return
        self.listener.on_signal(number)

    # The thread.

    def _start(self, target: Callable[..., None], *args) -> None:
        thread = threading.Thread(
            target=target, args=args, name='slimguard-preemption', daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def _look_out(self) -> None:
        # An outer watch hears of the signal when this one has ended.
        outer = {-1, *(entered._sender.fileno() for entered in _entered if entered is not self)}
        while True:
            received = self._receiver.recv(1)
            if not received:
                return
            number = received[0]
            if self._sent[number] > 0:
                self._sent[number] -= 1
                continue
            if self._old_wakeup_fd not in outer:
                try:
                    os.write(self._old_wakeup_fd, received)
                except OSError:
                    pass  # full or closed; Python says so where it is its own
            if self._handles(number):
                self.listener.on_wakeup(number)


def is_main_thread() -> bool:
    """Whether signals come to the thread that asks."""
    return threading.current_thread() is threading.main_thread()


def _is_held_up(number: int) -> bool:
    """Whether the thread that asks has blocked a signal."""
    if not hasattr(signal, 'pthread_sigmask'):  # on Windows
        return False
    return number in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def listeners() -> List[SignalListener]:
    """Those that listen in this process, the innermost first."""
    return [entered.listener for entered in reversed(list(_entered))]


def _act_as(handler, number: int, frame) -> None:
    """Does what `handler` does with a signal."""
    if callable(handler):
        handler(number, frame)
    else:
        signal.signal(number, handler)
        os.kill(os.getpid(), number)


# What Python calls around a fork, in the thread that forks. It cannot be taken back, so it is
# registered once, and acts on what is entered.


def _before_fork() -> None:
    """Holds up the signals: the child must not get one while it still has the parent's handlers.

    It would tell the parent's thread of it and forget it, where without us it would have ended.
    """
    # Also where nothing is entered: another thread may do so before the process is forked.
    _held_up.numbers = _OURS - signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _held_up.__dict__.pop('numbers', ()))


def _after_fork_in_child() -> None:
    try:
        while _entered:
            _entered.pop()._leave_in_child()
    finally:
        _after_fork()


if hasattr(os, 'register_at_fork'):  # elsewhere nothing forks
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )
