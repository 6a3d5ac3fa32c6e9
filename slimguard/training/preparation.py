"""Prepares a new session for its training, as soon as its variables are initialized."""

from typing import Any, Callable, Sequence

import tensorflow as tf

from slimguard.checkpoints.checkpoint_files import reason_of
from slimguard.incidents.incident import Incident
from slimguard.incidents.policies import Rollback


class NotInitializedError(tf.errors.FailedPreconditionError):
    """A step begins, but a variable that is saved before the first step is not initialized."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class Preparation:
    """Prepares a session as soon as its variables are initialized: at once, or before a step.

    A plain session's variables may be initialized after its hooks got it.

    Args:
      prepare: called with the session; raises FailedPreconditionError if it is too early.
    """

    def __init__(self, prepare: Callable[[Any], None]):
        self._prepare = prepare
        self._is_due = False

    def enter(self, session, at_once: bool) -> None:
        """For a new session, whose variables may not be initialized yet."""
        self._is_due = not at_once
        if at_once:
            try:
                self._prepare(session)
            except tf.errors.FailedPreconditionError:
                self._is_due = True

    def before_step(self, session) -> None:
        """Prepares the session if it was too early for that before."""
        if self._is_due:
            self._is_due = False
            try:
                self._prepare(session)
            except tf.errors.FailedPreconditionError as error:
                self._is_due = True
                raise NotInitializedError(_NOT_INITIALIZED % reason_of(error)) from None


def call_on_rollback(session, incident: Incident, policies: Sequence[Any]) -> None:
    """Calls the first `on_rollback` among `policies`, after a job has rolled back."""
    for policy in policies:
        if isinstance(policy, Rollback) and policy.on_rollback is not None:
            policy.on_rollback(session, incident)
            return


_NOT_INITIALIZED = (
    'the state is saved before the first step, to go back to, and a variable has no value yet; run '
    'tf.compat.v1.global_variables_initializer(), or restore a checkpoint, first. TensorFlow says: '
    '%s'
)
