"""The error that ends a training with an incident."""

import tensorflow as tf

from slimguard.incidents.incident import Incident, replay_hint


class NanLossError(tf.compat.v1.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError):
    """Training ended by the policy 'raise'.

    It is caught by handlers of both errors that TensorFlow raises for a NaN:
    `tf.compat.v1.train.NanLossDuringTrainingError` (its `NanTensorHook`) and
    `tf.errors.InvalidArgumentError` (its `check_numerics`).

    Its message ends with what made the step bad, and the command that runs it again, where that
    was captured; and where the loss was above `max_loss`, or rollbacks did not help, with what may.

    Attributes:
      incident: the `Incident`.
    """

    __module__ = 'slimguard'  # what tracebacks show is the name that users import

    def __init__(self, incident: Incident):
        self.incident = incident
        tf.errors.InvalidArgumentError.__init__(self, None, None, self.message)

    @property
    def message(self) -> str:
        """What happened. It is put together when it is read: a bundle may be gone by then."""
        lines = ['Bad step ' + str(self.incident)]
        if self.incident.diagnosis is not None:
            lines.append(self.incident.diagnosis)
        if self.incident.bundle is not None:
            lines.append(replay_hint(self.incident.bundle))
        if self.incident.advice is not None:
            lines.append(self.incident.advice)
        return '\n'.join(lines)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self):
        return NanLossError, (self.incident,)
