"""slim's loop, and the threads that save what it trains, take turns: :func:`in_turns`."""

from typing import Any, Callable, Optional, Tuple

from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.checkpoints.step_turn import StepTurn
from slimguard.compat import tf_callers
from slimguard.training.loop import HookedSteps
from slimguard.training.supervisor import wait_before_stop


def in_turns(
    steps: HookedSteps, turn: StepTurn, saver: Optional[FiniteSaver]
) -> Tuple[Callable[..., Any], Callable[[Any], Any]]:
    """The step function and the session wrapper for slim's loop, which give way to who copies.

    Args:
      steps: the steps of the loop.
      turn: whose turn it is.
      saver: the training's saver. What it is writing is waited for when the training ends.
    """

    def until_written() -> None:
        turn.end_steps()
        if saver is not None:
            with saver.lock:
                pass

    def wrap(session):
        hooked = steps.wrap(session)
        supervisor = tf_callers.supervisor_that_calls()
        if supervisor is not None:
            wait_before_stop(supervisor, until_written)
        return hooked

    return turn.stepping(steps.step), wrap
