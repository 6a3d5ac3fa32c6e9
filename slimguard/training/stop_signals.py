"""SIGTERM and Ctrl-C end a training at the end of a step, with everything saved: `StopSignals`.

Each loop has one `StopSignals`. The process has one `Listener` (system/signals.py). It passes each
signal twice to the training that began last: by Python's handler, when the main thread next runs
Python code; and by a thread, at once.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Set

from slimguard import gate as gates
from slimguard.checkpoints.checkpoint_reader import global_step_in
from slimguard.checkpoints.finite_saver import last_published
from slimguard.checkpoints.step_turn import in_midst_of_a_step
from slimguard.compat import tf_private
from slimguard.gate.building.ranks import Exchange
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.system.log import log
from slimguard.system.numbers import is_positive
from slimguard.system.signals import SIGNALS, Listener, is_main_thread

# How long a step may take after SIGTERM or Ctrl-C by default, in seconds. The sender does not wait
# forever.
SECONDS = 10.0

# The stages of a training:
_TRAINING = 'training'  # a signal waits for the end of the step, but not too long
_ENDING = 'ending'  # after the last step the loop saves, however long that takes
_RAISED = 'raised'  # the loop ends by the KeyboardInterrupt of a second Ctrl-C
_LEFT = 'left'  # saved between two steps, or ended: signals change only how it ends


class StopSignals:
    """From `enter` to `leave`, SIGTERM and Ctrl-C end the training after the step under way.

    During a step a signal makes `is_asked` true. The loop ends after the step, as at its normal
    end, and saves. Then `leave` ends the process by SIGTERM, or raises KeyboardInterrupt for
    Ctrl-C. A second Ctrl-C raises KeyboardInterrupt as soon as Python code runs.

    Between two steps a program's loop may do anything. So a signal saves the state at once, and
    ends the process (SIGTERM) or raises (Ctrl-C). SIGTERM waits if the loop will read `is_asked`;
    both signals wait if ranks train together.

    A step may wait for input that never comes, and Python's handlers wait with it. If the step does
    not end in time, a thread saves the state and ends the process. At a prompt and in a notebook,
    Ctrl-C never ends the process.

    If ranks train together, a rank that gets a signal sends it to all ranks in the next step, and
    they end after this step. No process ends before all have saved, since a launcher would then end
    the others.

    In three cases signals act as if there were no training: the program has handlers of its own;
    the loop runs in a thread other than the main one; the process is a forked child.

    This object keeps no session alive, and saves no closed session.

    Args:
      save: saves the state of the given session; called in any thread.
      seconds: how long a step may take to end.
      loop_asks: whether the loop also reads `is_asked` between two steps.
    """

    def __init__(
        self, save: Callable[[Any], Any], seconds: float = SECONDS, loop_asks: bool = True
    ):
        self._save = save
        self._seconds = seconds
        self._loop_asks = loop_asks
        self._current: Callable[[], Any] = lambda: None
        self._is_in_step = False
        self._begin()
        SIGNALS.trainings.add(self)

    def _begin(self) -> None:
        # No locks, as the handler may run in the middle of anything.
        self._stage = _TRAINING
        # The signals that any rank received; for each, how many checkpoints were saved before.
        self._heard: Dict[int, int] = {}
        self._waiting: Set[int] = set()  # signals that wait for the end of the step
        self._deadline: Optional[float] = None  # the deadline of the step; only the thread uses it
        self._tell_the_end: Optional[Exchange] = None  # tells other ranks of the end of this one

    # From beginning to end.

    def enter(self) -> None:
        """Handles the signals from now on, if this is the main thread."""
        if is_main_thread() and self not in _listener.trainings:
            self._begin()
            _listener.add(self)

    def enter_if_first(self) -> None:
        """As `enter`, unless another training handles the signals already."""
        if not _listener.trainings:
            self.enter()

    def leave(self) -> None:
        """Stops handling signals; ends the process or raises, if a signal came."""
        self._wait_for_ranks()
        if self not in _listener.trainings:  # left already, or a child process
            return
        has_raised, self._stage = self._stage is _RAISED, _LEFT
        self._is_in_step = False
        _listener.remove(self)
        number = self.ends_by()
        if number == signal.SIGTERM or number is not None and not is_main_thread():
            _end_by(number)  # another thread cannot raise in the main thread
        elif number is not None and not has_raised:
            raise KeyboardInterrupt

    def __enter__(self) -> 'StopSignals':
        self.enter()
        return self

    def __exit__(self, *_) -> None:
        self.leave()

    # The loop.

    @property
    def is_asked(self) -> bool:
        """Whether the loop is to end after the step."""
        if self._stage is _LEFT:
            return False
        return self._tell_the_end is not None or bool(self._waiting) and not self._has_ranks()

    def watch(self, session) -> None:
        """Saves the state of this session from now on."""
        self._current = weakref.ref(session)

    def begin_step(self) -> None:
        """Notes that a step begins."""
        self._is_in_step = True

    def end_step(self) -> None:
        """Notes that the step has ended, with an error or without."""
        self._is_in_step = False

    def run_step(self, session, run: Callable[..., Any], *args: Any) -> Any:
        """Runs a step, `run(session, *args)`, of a loop that never reads `is_asked`.

        A signal waits for the end of the step if the step runs in the main thread.
        """
        self.watch(session)
        if not is_main_thread():
            return run(session, *args)
        self.begin_step()
        try:
            return run(session, *args)
        finally:
            self.end_step()
            if self.is_asked:
                self._act()

    def tell_saving(self) -> None:
        """Notes that the loop saves after its last step. Logs the signal that ended the loop."""
        if self._stage is not _TRAINING:
            return
        self._stage = _ENDING
        number = self.ends_by()
        if number is not None:
            is_of_another = self._tell_the_end is not None and number not in self._waiting
            where = ' on another rank' if is_of_another else ''
            log().warning('%s%s; saving before the end.', _name_of(number), where)

    def tell_saved(self) -> None:
        """Logs the checkpoint that was saved after a signal, if there is one."""
        saves, path = last_published()
        number = self.ends_by()
        if number is None or saves == min(self._heard.values()):
            return
        step = global_step_in(path)
        which = '' if step is None else ' (global step %d)' % step
        if path.endswith('-last'):  # a script's own may have a larger number
            which += ', newer than those beside it'
        names = _name_of(number), path, which
        log().warning(SAVED_BY_SIGNAL, *names)
        for note in note_saved:
            note(SAVED_BY_SIGNAL % names)

    def ends_by(self) -> Optional[int]:
        """The signal to end by, or None. SIGTERM first: its sender may soon kill the process."""
        return signal.SIGTERM if signal.SIGTERM in self._heard else next(iter(self._heard), None)

    def save_session(self) -> None:
        """Saves the session, if it is open."""
        session = self._open_session()
        if session is not None:
            self._save(session)

    def _open_session(self) -> Any:
        session = self._current()
        return None if session is None or tf_private.is_closed(session) else session

    # The handler, in the main thread.

    def on_signal(self, number: int) -> None:
        """Asks the loop to end, or acts at once; at a second Ctrl-C, raises KeyboardInterrupt."""
        self._note(number)
        if self._stage is _LEFT:
            return
        if not self._waits_for_a_step(number):
            self._act()
        elif number == signal.SIGINT and number in self._waiting:
            self._stage = _RAISED
            raise KeyboardInterrupt
        else:
            self._waiting.add(number)
            if self._has_ranks():
                SIGNALS.hear(number)

    def _note(self, number: int) -> None:
        self._heard.setdefault(number, last_published()[0])

    def _waits_for_a_step(self, number: int) -> bool:
        if self._is_in_step or self._has_ranks():
            return True
        # Let the loop end by itself, with its hooks' `end`. If no step comes, the thread acts on
        # SIGTERM. A user who pressed Ctrl-C should not have to wait for this.
        loop_asks = self._loop_asks and self._open_session() is not None
        return loop_asks and number == signal.SIGTERM

    def _act(self) -> None:
        """Saves, leaves, and ends the process or raises."""
        if self not in _listener.trainings:
            return
        if self._stage is not _RAISED:
            if self._open_session() is not None:
                self.tell_saving()
            self._stage = _LEFT
        self.save_session()
        self.leave()

    # Ranks that train together.

    def _has_ranks(self) -> bool:
        """Whether several ranks, which end together, run the steps."""
        session = self._open_session()
        return session is not None and gates.ranks_in(session.graph).end_together

    def on_shared_signal(self, number: int) -> None:
        """Called once all ranks know of a signal to one of them: all end after this step."""
        session = self._open_session()
        if session is not None and self._has_ranks() and self._stage is not _LEFT:
            self._note(number)
            self._tell_the_end = gates.ranks_in(session.graph).exchange

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

    # The thread, which ends the training if the main thread does not react.

    def on_wakeup(self, number: int) -> None:
        """Sets the deadline of the step: the signal may not reach the main thread."""
        self._note(number)
        if self._deadline is not None:
            return
        self._deadline = time.monotonic() + self._seconds
        is_ctrl_c = number == signal.SIGINT
        if is_ctrl_c and self._stage is _TRAINING and self._waits_for_a_step(number):
            log().warning(
                'Ctrl-C; the step under way is finished first. A second one raises '
                'KeyboardInterrupt as soon as Python runs.'
            )

    def seconds_left(self) -> Optional[float]:
        """How long the step under way may still take; None if no signal waits for its end."""
        if self._deadline is None or self._stage is not _TRAINING:
            return None
        return max(0.001, self._deadline - time.monotonic())

    def end_in_midst_of_step(self) -> None:
        """Saves the state and ends the process, since the step has not ended."""
        self._deadline = None
        number = self.ends_by()
        if number is None or self._stage is not _TRAINING:
            return
        stays = number == signal.SIGINT and _is_interactive()
        log().error(
            '%s, and %s for %g s; saving%s.',
            _name_of(number),
            'the ranks have not ended together' if self._has_ranks() else 'no step has ended',
            self._seconds,
            ', and waiting on' if stays else ' and ending',
        )
        with in_midst_of_a_step():
            for training in reversed(list(_listener.trainings)):
                training.save_session()
        self.tell_saved()
        if not stays and self._stage is _TRAINING:  # else the main thread saves and ends
            _exit(128 + number)


def require_seconds(seconds) -> None:
    """Raises ValueError unless `preemption_seconds` is a positive finite number."""
    if not is_positive(seconds):
        raise ValueError(
            'preemption_seconds must be a positive finite number, the seconds that a step may '
            'take to end after SIGTERM or Ctrl-C, not %r' % (seconds,)
        )


SAVED_BY_SIGNAL = '%s: saved %s%s'  # `run --quiet` lets this line pass
# These functions also get the line.
note_saved: List[Callable[[str], None]] = []
# These functions are called before a signal ends the process, since no exit handlers run then.
last_words: List[Callable[[], None]] = []


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
        with contextlib.suppress(Exception):  # another writer may hold stderr
            say()


def _exit(status: int) -> None:
    """Ends the process from any thread, with the children that Python ends at exit.

    Otherwise the workers of a `multiprocessing.Pool` would wait forever for work.
    """
    for child in multiprocessing.active_children():
        with contextlib.suppress(Exception):  # the child, or its manager, has ended
            if child.daemon:
                child.terminate()
    _say_last_words()
    os._exit(status)


def _is_interactive() -> bool:
    """Whether somebody types into this process: a notebook, `python -i`, any prompt."""
    return hasattr(sys, 'ps1') or bool(sys.flags.interactive)


_listener = Listener(with_short_traceback, _end_by)
