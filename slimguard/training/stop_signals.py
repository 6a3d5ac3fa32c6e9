"""SIGTERM and Ctrl-C end a training at the end of a step, with everything saved: `StopSignals`.

Each loop has one `StopSignals`, which holds a flag that the loop asks for at the end of a step. One
`_Listener` for the process hears the signals, and tells the training that began last: Python's
handlers tell it in the main thread, and a thread that waits for nobody sees to the rest.
"""

import math
import os
import signal
import socket
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Set

from slimguard import gate as gates
from slimguard.checkpoints.checkpoint_reader import global_step_in
from slimguard.checkpoints.finite_saver import last_published
from slimguard.checkpoints.step_turn import in_midst_of_a_step
from slimguard.compat import tf_private
from slimguard.gate.building.ranks import SIGNALS, Exchange
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.system.log import log

# How long a step may take after SIGTERM or Ctrl-C by default, in seconds. The sender does not wait
# for ever.
SECONDS = 10.0


class StopSignals:
    """From `enter` to `leave`, the training ends at SIGTERM and Ctrl-C, after the step under way.

    During a step a signal sets `is_asked`. The loop ends after the step, as at its normal end, and
    saves. `leave` then ends the process by SIGTERM, or raises KeyboardInterrupt. If both signals
    came, the process ends by SIGTERM.

    Between two steps the loop of a program may do anything. A signal between two steps saves the
    state at once, unless the loop will ask for it; then it ends the process or raises. Further
    signals change only how the training ends: the save does not begin anew.

    A step may wait for input that never comes, and Python's handlers wait with it. If the step does
    not end in time, a thread saves the state and ends the process. A second Ctrl-C raises
    KeyboardInterrupt as soon as Python runs. At a prompt and in a notebook, Ctrl-C never ends the
    process.

    If ranks train together, a rank that gets a signal sends it to all in their next step; between
    two steps the signal waits for that step. After it all ranks end. No process ends before all
    have saved, since a launcher would then end the others.

    Signals act as without a training if the program has handlers of its own, in threads other than
    the main one, and in children that the process forks.

    It keeps no session alive, and saves no closed session.

    Args:
      save: saves the state of a session that is given; called in any thread.
      seconds: how long a step may take to end.
      loop_asks: whether the loop also reads `is_asked` between two steps.

    Attributes:
      is_asked: whether the loop is to end after the step.
    """

    def __init__(
        self, save: Callable[[Any], Any], seconds: float = SECONDS, loop_asks: bool = True
    ):
        self._save = save
        self._seconds = seconds
        self._loop_asks = loop_asks
        self._current: Callable[[], Any] = _no_session
        self._is_in_step = False
        self._forget()
        SIGNALS.trainings.add(self)

    def _forget(self) -> None:
        self.is_asked = False
        self._in_the_end: Optional[int] = None  # the signal that `leave` acts by
        self._is_acting = False
        self._is_interrupted = False  # KeyboardInterrupt was raised, or will be after the save
        self._is_of_another = False  # another rank has heard the signal
        self._tell_the_end: Optional[Exchange] = None  # tells the other ranks, once all are to end
        # No locks, as the handler may run in the middle of anything.
        self._has_step_ended = self._has_left = False
        self._saves_before: Optional[int] = None  # the number of saves when the first signal came
        # The signals that reached the thread. The handler may get two signals as one.
        self._heard: Set[int] = set()
        self._ctrl_cs = 0
        self._deadline: Optional[float] = None

    # From beginning to end.

    def enter(self) -> None:
        """Handles the signals from now on, if this is the main thread."""
        if is_main_thread() and self not in _listener.trainings:
            self._forget()
            _listener.add(self)

    def enter_if_first(self) -> None:
        """As `enter`, unless another training handles the signals already."""
        if not _listener.trainings:
            self.enter()

    def leave(self) -> None:
        """Stops handling signals; ends the process or raises, if a signal came."""
        self._wait_for_ranks()
        if self not in _listener.trainings:  # or in a child, which has left already
            return
        self._has_step_ended = self._has_left = self._is_acting = True
        self._is_in_step = False
        _listener.remove(self)
        if self._in_the_end == signal.SIGINT:
            if is_main_thread():
                raise KeyboardInterrupt
            _end_by(signal.SIGINT)  # as where another thread closes the session

    def __enter__(self) -> 'StopSignals':
        self.enter()
        return self

    def __exit__(self, *_) -> None:
        self.leave()

    # What the loop reports.

    def watch(self, session) -> None:
        """Saves the state of this session from now on."""
        self._current = weakref.ref(session)

    def begin_step(self) -> None:
        """A step begins."""
        self._is_in_step = True

    def end_step(self) -> None:
        """The step has ended, with an error or without."""
        self._is_in_step = False

    def run_step(self, session, run: Callable[..., Any], *args: Any) -> Any:
        """Runs a step of a loop that never reads `is_asked`: `run` of the session and `args`.

        A signal waits for its end, unless it runs in another thread than the main one.
        """
        self.watch(session)
        if not is_main_thread():
            return run(session, *args)
        self.begin_step()
        try:
            return run(session, *args)
        finally:
            self.end_step()
            if self.is_asked or self._is_interrupted:
                self._act()

    def tell_saving(self) -> None:
        """If a signal came, logs that it ends the training; call it before the save."""
        self._has_step_ended = True
        if self._in_the_end is not None:
            name = _name_of(self._in_the_end) + (' on another rank' if self._is_of_another else '')
            if self._has_ranks():
                log().warning('%s; the step is done, and all ranks end.', name)
                return
            done = 'the step is done, ' if self.is_asked else ''
            log().warning('%s; %ssaving before the end.', name, done)

    def tell_saved(self) -> None:
        """Names the checkpoint that was saved since a signal came, if any was."""
        saves, path = last_published()
        if self._saves_before is None or saves == self._saves_before:
            return
        name = _name_of(self.ends_by() or signal.SIGINT)  # a second Ctrl-C is raised, not noted
        step = global_step_in(path)
        told = name, path, '' if step is None else ' (global step %d)' % step
        log().warning(SAVED_BY_SIGNAL, *told)
        for note in note_saved:
            note(SAVED_BY_SIGNAL % told)

    def ends_by(self) -> Optional[int]:
        """The signal by which to end: the sender of SIGTERM may kill the process soon."""
        return signal.SIGTERM if signal.SIGTERM in self._heard else self._in_the_end

    # What the handler calls in the main thread.

    def on_signal(self, number: int) -> None:
        """Sets the flag, or acts at once; at a second Ctrl-C, raises KeyboardInterrupt."""
        self._note_coming()
        if self._is_acting:
            self._note(number)
        elif not self._waits_for_a_step(number):
            self.is_asked = False
            self._note(number)
            self._act()
        elif number == signal.SIGINT and self._is_second_ctrl_c():
            self._in_the_end = None if self._in_the_end == number else self._in_the_end
            self._is_interrupted = True
            raise KeyboardInterrupt
        else:
            self._note(number)
            self._is_of_another = False
            if self._has_ranks():
                SIGNALS.hear(number)
            else:
                self.is_asked = True

    def _note_coming(self) -> None:
        if self._saves_before is None:
            self._saves_before, _ = last_published()

    def _note(self, number: int) -> None:
        if self._in_the_end != signal.SIGTERM:
            self._in_the_end = number

    def _is_second_ctrl_c(self) -> bool:
        was_first = self._in_the_end == signal.SIGINT and not self._is_of_another
        return was_first or self._is_interrupted or self._ctrl_cs > 1

    def _waits_for_a_step(self, number: int) -> bool:
        if self._is_in_step or self._has_ranks():
            return True
        if not self._loop_asks or self._open_session() is None:
            return False
        # Let the loop end by itself, with its hooks' `end`. If no step comes, the thread acts on
        # SIGTERM. After Ctrl-C the user does not wait for that.
        return number == signal.SIGTERM

    def _act(self) -> None:
        """Saves, leaves, and ends the process or raises."""
        if self._is_acting or self not in _listener.trainings:
            return
        self._is_acting = self._is_interrupted = True  # the thread, too, waits for the save
        if self._open_session() is not None:
            self.tell_saving()
        self.save_session()
        self.leave()

    def save_session(self) -> None:
        """Saves the session, if it is open."""
        session = self._open_session()
        if session is not None:
            self._save(session)

    def _open_session(self) -> Any:
        session = self._current()
        return None if session is None or tf_private.is_closed(session) else session

    # If ranks train together.

    def _has_ranks(self) -> bool:
        """Whether the steps are run by several ranks, which end together."""
        session = self._open_session()
        return session is not None and gates.ranks_in(session.graph).end_together

    def on_shared_signal(self, number: int) -> None:
        """All ranks know of a signal to one of them, and end after this step."""
        session = self._open_session()
        if self._has_left or session is None or not self._has_ranks():
            return
        self._is_of_another = self._in_the_end is None
        self._note_coming()
        self._note(number)
        self._tell_the_end = gates.ranks_in(session.graph).exchange
        self.is_asked = True

    def _wait_for_ranks(self) -> None:
        """Waits until all ranks have saved, if they end together."""
        tell, self._tell_the_end = self._tell_the_end, None
        SIGNALS.forget()
        if tell is None:
            return
        try:
            tell('end', '')
        except Exception as error:
            log().warning('another rank has not ended as it should: %s', error)

    # In the thread, which ends the training if the main thread does not react.

    def on_wakeup(self, number: int) -> None:
        """A signal has come, which may not reach the main thread."""
        if number not in self._heard:
            self._heard.add(number)
            self._deadline = time.monotonic() + self._seconds
        if number != signal.SIGINT:
            return
        self._ctrl_cs += 1
        if self._ctrl_cs > 1 and not self._is_acting:
            log().warning(
                'Ctrl-C again; KeyboardInterrupt is raised as soon as Python runs: what '
                'TensorFlow computes ends first.'
            )
        elif not (self._is_acting or self._has_step_ended) and self._waits_for_a_step(number):
            log().warning(
                'Ctrl-C; the step under way is finished first. A second one does not wait for it.'
            )

    def seconds_left(self) -> Optional[float]:
        """How long the step under way may take; None if nothing waits for its end."""
        if self._deadline is None or self._has_step_ended:
            return None
        return max(0.001, self._deadline - time.monotonic())

    def end_in_midst_of_step(self) -> None:
        """Saves the state and ends the process, since the step has not ended."""
        self._deadline = None
        number = signal.SIGTERM if signal.SIGTERM in self._heard else signal.SIGINT
        if self._has_step_ended or number == signal.SIGINT and self._is_interrupted:
            return
        stays = number == signal.SIGINT and _is_interactive()
        log().error(
            '%s, and %s for %g s; saving%s.',
            _name_of(number),
            'the ranks have not ended together' if self._has_ranks() else 'no step has ended',
            self._seconds,
            ', and waiting on' if stays else ' and ending',
        )
        self._note_coming()
        with in_midst_of_a_step():
            _listener.save_all()
        self.tell_saved()
        if not (stays or self._has_step_ended):  # else the main thread saves, and ends it
            _exit(128 + number)


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


SAVED_BY_SIGNAL = '%s: saved %s%s'  # which `run --quiet` lets pass
# Called with this line as well.
note_saved: List[Callable[[str], None]] = []


def is_main_thread() -> bool:
    """Whether the calling thread is the one that gets signals."""
    return threading.current_thread() is threading.main_thread()


# The last words before a signal ends the process, since no exit handlers run then.
last_words: List[Callable[[], None]] = []


def _no_session() -> None:
    """No session yet."""


def _name_of(number: int) -> str:
    return 'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name


def _end_by(number: int) -> None:
    """Sends the process a signal, so that the exit status shows it."""
    try:
        if signal.getsignal(number) == signal.SIG_DFL:
            _say_last_words()
    finally:
        os.kill(os.getpid(), number)


def _say_last_words() -> None:
    for say in last_words:
        try:
            say()
        except Exception:  # another writer may hold stderr, and the end is due
            pass


def _exit(status: int) -> None:
    """Ends the process from any thread, with the children that Python ends at exit.

    Without that, the workers of a `multiprocessing.Pool` would wait for work for ever.
    """
    multiprocessing = sys.modules.get('multiprocessing.process')
    children = multiprocessing.active_children() if multiprocessing is not None else []
    for child in children:
        try:
            if child.daemon:
                child.terminate()
        except Exception:  # it has ended, or the process that manages it has
            pass
    _say_last_words()
    os._exit(status)


def _is_interactive() -> bool:
    """Whether somebody types into this process: a notebook, `python -i`, any prompt."""
    return hasattr(sys, 'ps1') or bool(sys.flags.interactive)


_DEFAULTS: Dict[int, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


class _Listener:
    """The handlers of SIGTERM and Ctrl-C, and a thread that gets the signals, during a training.

    The handlers run in the main thread, once it runs Python. The thread waits for nobody: Python
    writes each signal to the wake-up descriptor as it comes.

    Attributes:
      trainings: the trainings that get signals, the innermost last.
    """

    def __init__(self) -> None:
        self.trainings: List[StopSignals] = []
        self._thread: Optional[threading.Thread] = None
        self._old_wakeup_fd = -1

    def add(self, training: StopSignals) -> None:
        """Sends a training the signals for which the program has no handler of its own."""
        if self._thread is None:
            free = [n for n, default in _DEFAULTS.items() if signal.getsignal(n) == default]
            if not free:
                return
            self._open(free)
        self.trainings.append(training)

    def remove(self, training: StopSignals) -> None:
        """Sends it no more signals. The last removal restores the handlers from before the first.

        If the process has to end by SIGTERM, that comes before Python's own handler of Ctrl-C is
        back: a KeyboardInterrupt would hide it.
        """
        # A thread that frees a session cannot put handlers back; the next signal does it.
        is_last = self.trainings == [training] and is_main_thread()
        if is_last:
            self._end_thread()  # from here on all signals so far are known
        training.tell_saved()
        if is_last:
            self._put_back(signal.SIGTERM)
        self.trainings.remove(training)
        if training.ends_by() == signal.SIGTERM:
            _end_by(signal.SIGTERM)
        if is_last:
            self._put_back(signal.SIGINT)

    def save_all(self) -> None:
        """Saves all trainings, the innermost first."""
        for training in reversed(list(self.trainings)):
            training.save_session()

    # The handlers.

    def _open(self, numbers: List[int]) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._thread = threading.Thread(
            target=self._look_out, name='slimguard-signals', daemon=True
        )
        self._thread.start()
        for number in numbers:
            signal.signal(number, self._on_signal)
        self._old_wakeup_fd = signal.set_wakeup_fd(self._sender.fileno())

    def _end_thread(self) -> None:
        self._put_wakeup_fd_back()
        # Closing the sender would not end the thread while a child holds a copy of it.
        self._sender.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and not sys.is_finalizing():  # then no other thread runs
            self._thread.join()
        self._close_sockets()
        self._thread = None

    def _put_wakeup_fd_back(self) -> None:
        there = signal.set_wakeup_fd(-1)
        try:
            ours = there == self._sender.fileno()
            signal.set_wakeup_fd(self._old_wakeup_fd if ours else there)
        except (OSError, ValueError):
            pass  # its owner has closed it

    def _put_back(self, number: int) -> None:
        """Puts back the earlier handler, if the present one is ours."""
        if self._handles(number):
            signal.signal(number, _DEFAULTS[number])

    def _handles(self, number: int) -> bool:
        return signal.getsignal(number) == self._on_signal

    def _close_sockets(self) -> None:
        self._sender.close()
        self._receiver.close()

    @with_short_traceback
    def _on_signal(self, number: int, frame) -> None:
        if self.trainings:
            self.trainings[-1].on_signal(number)
            return
        # All trainings have ended in another thread, or a handler of the program still calls this
        # one.
        if self._thread is not None:
            self._end_thread()
        for each in _DEFAULTS:
            self._put_back(each)
        if number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        signal.signal(number, _DEFAULTS[number])
        _end_by(number)

    # The thread.

    def _look_out(self) -> None:
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
            if self._old_wakeup_fd != -1:
                try:
                    os.write(self._old_wakeup_fd, received)
                except OSError:
                    pass  # full or closed; Python reports it for a pipe of its own
            if self._handles(received[0]):
                for told in self.trainings[-1:]:
                    told.on_wakeup(received[0])

    # A forked child has no such thread, and nobody has asked it to end.

    def leave_in_child(self) -> None:
        """Restores everything in a child."""
        self.trainings = []
        for number in _DEFAULTS:
            self._put_back(number)
        if self._thread is not None:
            self._put_wakeup_fd_back()
            self._close_sockets()
            self._thread = None


_listener = _Listener()


# Called by Python around a fork, in the thread that forks; it cannot be unregistered.

# By thread, since several may fork at once: the signals that are blocked meanwhile.
_held_up = threading.local()


def _before_fork() -> None:
    """Blocks the signals: the child must not get one while it still has the parent's handlers.

    The child would pass it to the parent's thread and ignore it; without us it would have ended.
    """
    # Also without handlers: another thread may install them before the process is forked.
    _held_up.numbers = set(_DEFAULTS) - signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULTS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _held_up.__dict__.pop('numbers', ()))


def _after_fork_in_child() -> None:
    try:
        _listener.leave_in_child()
    finally:
        _after_fork()


if hasattr(os, 'register_at_fork'):  # elsewhere nothing forks
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )
