"""slim's loop takes turns with the threads that save and summarize: :func:`in_turns`."""

import contextlib
import logging
from typing import Any, Callable, Iterator, Optional, Tuple

import tensorflow as tf

from slimguard.checkpoints.step_turn import StepTurn
from slimguard.compat import tf_callers
from slimguard.training.loop import SlimLoop
from slimguard.training.supervisor import summarize, wait_before_stop


@contextlib.contextmanager
def in_turns(
    steps: SlimLoop,
    turn: StepTurn,
    summary_op: Optional[tf.Tensor] = None,
) -> Iterator[Tuple[Callable[..., Any], Callable[[Any], Any]]]:
    """The step function and the session wrapper for slim's loop, giving way to threads that save.

    What these threads are writing is waited for when the training ends. While it is open, slim's
    log tells of the user's session wrapper only, as without us.

    Args:
      steps: the steps of the loop.
      turn: whose turn it is.
      summary_op: what the Supervisor is to make of the model between two steps, in place of a
        summary op of its own; or None.
    """

    def wrap(session):
        hooked = steps.wrap(session)
        supervisor = tf_callers.supervisor_that_calls()
        if supervisor is not None:
            wait_before_stop(supervisor, turn.wait_for_savers)
            if summary_op is not None:
                summarize(supervisor, session, summary_op, turn.no_step)
        return hooked

    told = _Wrapper(wrap, steps.session_wrapper)
    log = logging.getLogger('tensorflow')
    log.addFilter(told)
    try:
        yield turn.stepping(steps.step), wrap
    finally:
        log.removeFilter(told)


class _Wrapper(logging.Filter):
    """Keeps a session wrapper of ours out of the log; a user's that it calls takes its place."""

    def __init__(self, ours: Callable[[Any], Any], theirs: Optional[Callable[[Any], Any]]):
        super().__init__()
        self._ours, self._theirs = ours, theirs

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        if not (isinstance(args, tuple) and len(args) == 1 and args[0] is self._ours):
            return True
        record.args = (self._theirs,)
        return self._theirs is not None
