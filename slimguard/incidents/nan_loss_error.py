"""The error that ends a training with an incident."""

import functools
import traceback
from typing import Any, Callable, List, TypeVar, cast

import tensorflow as tf

from slimguard.incidents.incident import Incident, replay_hint
from slimguard.system import notebook
from slimguard.system.user_code import Owners

_F = TypeVar('_F', bound=Callable[..., Any])


class NanLossError(tf.compat.v1.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError):
    """Training ended by the policy 'raise'.

    It is caught by handlers of both errors that TensorFlow raises for a NaN:
    `tf.compat.v1.train.NanLossDuringTrainingError` (its `NanTensorHook`) and
    `tf.errors.InvalidArgumentError` (its `check_numerics`).

    Its message begins with what made the step bad, if that was found. It ends with the command
    that runs the step again, if it was captured, and with what may help, where the loss was above
    `max_loss` or rollbacks did not help.

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
        if self.incident.diagnosis is None:
            lines = ['Bad step %s' % self.incident]
        else:  # what made it bad comes first, and then what it made bad
            cause = self.incident.diagnosis.splitlines()
            lines = ['Bad step %s: %s' % (self.incident.where, cause[0]), *cause[1:]]
            lines.append('%s; %s' % (self.incident.reason, self.incident.update))
        if self.incident.bundle is not None:
            lines.append(replay_hint(self.incident.bundle))
        if self.incident.advice is not None:
            lines.append(self.incident.advice)
        return '\n'.join(lines)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self):
        return NanLossError, (self.incident,)

    def _render_traceback_(self) -> List[str]:
        """What IPython shows in place of a traceback: what happened, then the user's own lines."""
        told = ['NanLossError: ' + self.message]
        owners = Owners()
        frames = [
            frame
            for frame in traceback.extract_tb(self.__traceback__)
            if owners.is_users(frame.filename)
        ]
        if frames:
            told.append('raised in')
        for frame in frames:
            place = notebook.place_of(frame.filename)
            line = ': ' + frame.line if frame.line else ''
            told.append('  %s, line %s, in %s%s' % (place, frame.lineno, frame.name, line))
        return '\n'.join(told).split('\n')


def with_short_traceback(function: _F) -> _F:
    """Has a `NanLossError` leave a function without the frames beneath.

    They say how slimguard came to raise it, and would stand between the user's line and what
    happened.
    """

    @functools.wraps(function)
    def raising_shortly(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except NanLossError as error:
            raise error.with_traceback(None) from error.__cause__

    return cast(_F, raising_shortly)
