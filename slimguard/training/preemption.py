"""SIGTERM and Ctrl-C end a training at the end of a step, with everything saved.

They end that of the process that trains. Its children have none of this: see :class:`Preemption`.
"""

import os
import signal
import socket
import sys
import threading
from typing import Any, Callable, Dict, List, Optional

import tensorflow.compat.v1 as tf1

# How long a step may take after SIGTERM or Ctrl-C, in seconds. Who sends it does not wait for ever.
_PATIENCE = 10.0
# How long the main thread has to hear of a second Ctrl-C, in seconds. Where it runs Python, it
# takes none of that.
_GRACE = 1.0

_OURS = {signal.SIGTERM, signal.SIGINT}
# Those that are entered in this process: what a child leaves.
_entered: List['Preemption'] = []
# By thread, as several may fork at once: the signals that are held up meanwhile.
_held_up = threading.local()


class Preemption(tf1.train.SessionRunHook):
    """While it is entered, SIGTERM and Ctrl-C let the step under way finish, and end the training.

    The loop then ends as it always does: hooks' `end` runs and the last state is saved. On leaving,
    the handlers are put back as they were, and what was asked for happens: the process ends by
    SIGTERM, or KeyboardInterrupt is raised. A second Ctrl-C raises it at once.

    A step may be waiting for input that never comes, and Python's handlers wait with it. So a
    thread looks out for the signals, too. If no step ends, it saves, and ends the process itself.
    If the main thread does not hear of a second Ctrl-C, or does not leave the training by it, or if
    there is a third, it ends the process without that. The exit status is 128 and the signal.

    In a notebook and at a prompt, Ctrl-C never ends the process, with all that a user has there: if
    no step ends the state is saved, and KeyboardInterrupt is raised when a step does.

    Handlers that a program has set itself are left alone, before and while it is entered, and so
    are threads other than the main one, as Python lets only that one have handlers.

    Where one is entered within another, as a hook may train as well, signals end the inner
    training, and then the outer one.

    A child that the process forks meanwhile (multiprocessing, `os.fork`, `preexec_fn`) gets what
    was there before: signals do to it what they did without a training, and the training hears
    nothing of them. A child that is spawned never had anything else.

    Args:
      request_stop: ends the loop after the step under way; called from a signal handler.
      save: called with the session, in a thread of its own, where no step ends.
    """

    def __init__(self, request_stop: Callable[[], None], save: Callable[[Any], None]):
        self._request_stop = request_stop
        self._save = save
        self._session: Any = None
        self._asked: Optional[int] = None
        # Events take a lock, which the handler must not: it may run while they are being set.
        self._heard = threading.Event()  # a step has ended
        self._left = threading.Event()
        self._ctrl_cs = 0  # as many as the thread was told of; the handler may get two as one
        self._interrupted = False  # the handler has raised KeyboardInterrupt
        self._previous: Dict[int, Any] = {}
        self._threads: List[threading.Thread] = []
        self._old_wakeup_fd = -1
        self._process = os.getpid()

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
        previous = {}
        defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        ours = [entered._on_signal for entered in _entered]
        for number, default in defaults.items():
            handler = signal.getsignal(number)
            if handler == default or handler in ours:
                previous[number] = handler
        if previous:
            self._watch(previous)
        return self

    def __exit__(self, *_) -> None:
        if self not in _entered:  # or in a child, which has left it already
            return
        self._put_back()
        _entered.remove(self)
        self._heard.set()
        self._left.set()
        # Closing the sender ends the thread only where no child holds a copy of it.
        self._sender.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:  # the first adds to them until it ends
            thread.join()
        self._close()
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self._asked is not None:
            os.kill(os.getpid(), self._asked)  # so that the exit status tells

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
        is_again = self._asked == number or self._interrupted or self._ctrl_cs > 1
        if number == signal.SIGINT and is_again:
            self._asked = None
            self._interrupted = True
            raise KeyboardInterrupt
        self._asked = number
        self._request_stop()

    # The threads.

    def _start(self, target: Callable[..., None], *args) -> None:
        thread = threading.Thread(
            target=target, args=args, name='slimguard-preemption', daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def _start_or_do(self, target: Callable[..., None], *args) -> None:
        try:
            self._start(target, *args)
        except RuntimeError:  # the process may have no more threads
            target(*args)

    def _look_out(self) -> None:
        awaited = set()
        # An outer training hears of the signal when this one has ended.
        outer = {-1, *(entered._sender.fileno() for entered in _entered if entered is not self)}
        while True:
            received = self._receiver.recv(1)
            if not received:
                return
            if self._old_wakeup_fd not in outer:
                try:
                    os.write(self._old_wakeup_fd, received)
                except OSError:
                    pass  # full or closed; Python says so where it is its own
            number = received[0]
            if not self._handles(number):
                continue
            # What waits or saves does so in another thread: this one is there for the next signal.
            if number not in awaited:
                awaited.add(number)
                self._start_or_do(self._await_step, number)
            if number == signal.SIGINT:
                self._ctrl_cs += 1
                self._look_at_ctrl_c()

    def _look_at_ctrl_c(self) -> None:
        if self._ctrl_cs > 1 and _is_interactive():
            tf1.logging.warning(
                'slimguard: Ctrl-C again; KeyboardInterrupt is raised when the step ends.'
            )
        elif self._ctrl_cs > 2:
            self._end_at_once()
        elif self._ctrl_cs == 2:
            self._start_or_do(self._await_leaving)
        elif not self._heard.is_set():
            tf1.logging.warning(
                'slimguard: Ctrl-C; the step under way is finished first. A second one does not '
                'wait for it.'
            )

    def _await_step(self, number: int) -> None:
        """Saves, and ends the process, if no step ends."""
        if self._heard.wait(_PATIENCE) or number == signal.SIGINT and self._interrupted:
            return
        stays = number == signal.SIGINT and _is_interactive()
        tf1.logging.error(
            'slimguard: %s, and no step has ended for %g s; saving%s.',
            signal.Signals(number).name,
            _PATIENCE,
            ', and waiting on' if stays else ' and ending',
        )
        for entered in reversed(list(_entered)):
            if entered._session is not None:
                entered._save(entered._session)
        if not stays:
            _exit(128 + number)

    def _await_leaving(self) -> None:
        """Ends the process if a second Ctrl-C does not end the training."""
        if self._left.wait(_GRACE) or self._interrupted and self._left.wait(_PATIENCE):
            return
        self._end_at_once()

    def _end_at_once(self) -> None:
        tf1.logging.error('slimguard: Ctrl-C again; ending at once, with what was saved before.')
        _exit(128 + signal.SIGINT)


def _exit(status: int) -> None:
    """Ends the process from any thread, and the children that Python ends when a process ends.

    Without that, the workers of a `multiprocessing.Pool` would wait for work for ever.
    """
    multiprocessing = sys.modules.get('multiprocessing.process')
    children = multiprocessing.active_children() if multiprocessing is not None else []
    for child in children:
        try:
            if child.daemon:
                child.terminate()
        except Exception:  # it has ended, or the process that looks after it has
            pass
    os._exit(status)


def _is_interactive() -> bool:
    """Whether somebody types into this process: a notebook, `python -i`, any prompt."""
    return hasattr(sys, 'ps1') or bool(sys.flags.interactive)


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
