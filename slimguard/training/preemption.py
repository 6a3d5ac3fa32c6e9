"""SIGTERM and Ctrl-C end a training at the end of a step, with everything saved.

They end that of the process that trains. Its children have none of this: see :class:`Preemption`.
How the signals are heard is in :mod:`slimguard.training.signal_watch`.
"""

import math
import os
import signal
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Set

import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.step_turn import in_midst_of_a_step
from slimguard.system.log import log
from slimguard.training import signal_watch
from slimguard.training.signal_watch import SignalListener, SignalWatch, is_main_thread

# How long a step may take after SIGTERM or Ctrl-C by default, in seconds. The sender does not wait
# for ever.
SECONDS = 10.0
# How long the main thread has to hear of a second Ctrl-C, in seconds. Where it runs Python, it
# takes none of that.
_GRACE = 1.0
# The main thread is reminded of a signal that it did not hear after this many seconds.
_MOMENT = 0.1


class Preemption(SignalListener, tf1.train.SessionRunHook):
    """While it is entered, SIGTERM and Ctrl-C let the step under way finish, and end the training.

    The loop then ends as it always does: hooks' `end` runs and the last state is saved. On leaving,
    the handlers are put back as they were, and what was asked for happens: the process ends by
    SIGTERM, or KeyboardInterrupt is raised. A second Ctrl-C raises it at once. Where both signals
    come, SIGTERM is what happens in the end.

    A step may be waiting for input that never comes, and Python's handlers wait with it. So a
    thread looks out for the signals, too. If no step ends, it saves, and ends the process itself,
    unless the step has ended by then: then that is saved as well, and the training ends as it does.
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
      seconds: how long a step may take to end.
    """

    def __init__(
        self,
        request_stop: Callable[[], None],
        save: Callable[[Any], None],
        seconds: float = SECONDS,
    ):
        self._request_stop = request_stop
        self._save = save
        self._seconds = seconds
        self._signals = SignalWatch(self)
        self._session: Any = None
        self._asked: Optional[int] = None
        self._has_waited = True  # for the end of a step, before the state is saved
        self._awaited: Set[int] = set()  # the signals after which a thread waits for the step
        # Events take a lock, which the handler must not: it may run while they are being set.
        self._heard = threading.Event()  # a step has ended
        self._left = threading.Event()
        # Whether the process is to end before a step has: said once, by who is first. No lock.
        self._is_too_late: Dict[str, bool] = {}
        self._ctrl_cs = 0  # as many as the thread was told of; the handler may get two as one
        self._interrupted = False  # the handler has raised KeyboardInterrupt

    # The hook.

    def after_create_session(self, session, coord):
        self._session = session

    def end(self, session):
        self._heard.set()
        if self._asked is not None and not self._is_too_late.setdefault('is', False):
            done = 'the step is done, ' if self._has_waited else ''
            log().warning('slimguard: %s; %ssaving before the end.', _name_of(self._asked), done)

    # From beginning to end.

    def __enter__(self) -> 'Preemption':
        self._signals.enter()
        return self

    def __exit__(self, *_) -> None:
        if not self._signals.is_entered:  # or in a child, which has left it already
            return
        if not is_main_thread():  # as where a session is freed; the next signal does it
            return
        try:
            self._signals.leave()
            self._heard.set()
            self._left.set()
            self._signals.join()
        finally:  # a Ctrl-C that comes here is Python's own, and must not hide a SIGTERM
            if self._asked == signal.SIGTERM:
                _end_by(self._asked)
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt

    def save(self) -> None:
        """Saves the state of the training, if its session is there."""
        if self._session is not None:
            self._save(self._session)

    # The signals.

    def on_signal(self, number: int) -> None:
        """Asks the loop to end; at a second Ctrl-C, raises KeyboardInterrupt."""
        is_again = self._asked == number or self._interrupted or self._ctrl_cs > 1
        if number == signal.SIGINT and is_again:
            self._asked = None if self._asked == number else self._asked
            self._interrupted = True
            raise KeyboardInterrupt
        self._note(number)
        self._request_stop()

    def _note(self, number: int) -> None:
        """Notes what is to happen in the end. Who sends SIGTERM may kill the process soon."""
        if self._asked != signal.SIGTERM:
            self._asked = number

    def on_wakeup(self, number: int) -> None:
        """Sees to it that the training ends even if the main thread hears of nothing."""
        # Another thread waits and saves, so that this one can take the next signal.
        if number not in self._awaited:
            self._awaited.add(number)
            self._signals.start_or_do(self._await_step, number)
        if number == signal.SIGINT:
            self._ctrl_cs += 1
            self._look_at_ctrl_c()

    def _look_at_ctrl_c(self) -> None:
        if self._ctrl_cs > 1 and _is_interactive():
            log().warning(
                'slimguard: Ctrl-C again; KeyboardInterrupt is raised as soon as Python runs: what '
                'TensorFlow computes ends first.'
            )
        elif self._ctrl_cs > 2:
            self._end_at_once()
        elif self._ctrl_cs == 1 and not self._heard.is_set():
            log().warning(
                'slimguard: Ctrl-C; the step under way is finished first. A second one does not '
                'wait for it.'
            )
        if self._ctrl_cs == 2:
            self._signals.start_or_do(self._await_leaving)

    def _await_step(self, number: int) -> None:
        """Saves, and ends the process, if no step ends."""
        moment = min(_MOMENT, self._seconds)
        if not self._heard.wait(moment) and self._is_unheard(number):
            self._signals.remind(number)
        seconds = self._seconds - moment
        if self._heard.wait(seconds) or number == signal.SIGINT and self._interrupted:
            return
        stays = number == signal.SIGINT and _is_interactive()
        log().error(
            'slimguard: %s, and no step has ended for %g s; saving%s.',
            _name_of(number),
            self._seconds,
            ', and waiting on' if stays else ' and ending',
        )
        with in_midst_of_a_step():
            for training in signal_watch.listeners():
                if isinstance(training, Preemption):
                    training.save()
        if not stays and self._is_too_late.setdefault('is', True):
            _exit(128 + number)

    def _is_unheard(self, number: int) -> bool:
        """Whether the handler has not run; to run once too often for SIGTERM changes nothing."""
        if number == signal.SIGTERM:
            return self._asked != number
        return self._asked is None and not self._interrupted

    def _await_leaving(self) -> None:
        """Has a second Ctrl-C heard, and ends the process if it does not end the training."""
        if self._left.wait(_MOMENT):
            return
        # It may have heard two as one, and taken them for the first.
        if not self._interrupted:
            self._signals.remind(signal.SIGINT)
        if _is_interactive() or self._left.wait(_GRACE):
            return
        if self._interrupted and self._left.wait(self._seconds):
            return
        self._end_at_once()

    def _end_at_once(self) -> None:
        log().error('slimguard: Ctrl-C again; ending at once, with what was saved before.')
        _exit(128 + signal.SIGINT)


def require_seconds(seconds) -> None:
    """Raises ValueError unless `preemption_seconds` is a positive finite number."""
    try:
        good = not isinstance(seconds, (bool, str, bytes)) and 0 < float(seconds) < math.inf
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(
            'preemption_seconds must be a positive finite number, the seconds that a step may '
            'take to end after SIGTERM or Ctrl-C, not %r' % (seconds,)
        )


def _name_of(number: int) -> str:
    return 'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name


# What is said before a signal ends the process: no exit handlers are run then.
last_words: List[Callable[[], None]] = []


def _end_by(number: int) -> None:
    """Sends the process a signal, so that the exit status tells of it."""
    try:
        if signal.getsignal(number) == signal.SIG_DFL:
            _say_last_words()
    finally:
        os.kill(os.getpid(), number)


def _say_last_words() -> None:
    for say in last_words:
        try:
            say()
        except Exception:  # stderr may be written to just now, and the end is due
            pass


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
    _say_last_words()
    os._exit(status)


def _is_interactive() -> bool:
    """Whether somebody types into this process: a notebook, `python -i`, any prompt."""
    return hasattr(sys, 'ps1') or bool(sys.flags.interactive)
