"""The error that ends a training with an incident."""

import functools
import traceback
from typing import Any, Callable, List, Optional, TypeVar, cast

import tensorflow as tf

from slimguard.incidents import advice
from slimguard.incidents.incident import Incident, replay_hint, report_hint
from slimguard.incidents.record_file import path_in
from slimguard.system import files
from slimguard.system.user_code import ends_in_slimguard, is_users, place_of, until_users

_F = TypeVar('_F', bound=Callable[..., Any])


class NanLossError(tf.compat.v1.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError):
    """Training ended by the policy 'raise'.

    Code that catches either of the errors that TensorFlow raises for a NaN also catches this:
    `tf.compat.v1.train.NanLossDuringTrainingError` (of `NanTensorHook`) and
    `tf.errors.InvalidArgumentError` (of `check_numerics`).

    The message begins with the cause, if it was found. It says what to do if the cause has a known
    cure, the loss was above `max_loss`, or rollbacks did not help. It ends with a command: to make
    the page of the record, or without a record to run a captured step again.

    Attributes:
      incident: the `Incident`.
      logdir: the directory with the record of incidents, absolute; None if there is no record.
    """

    __module__ = 'slimguard'  # so tracebacks show the name that users import

    def __init__(self, incident: Incident, logdir: Optional[str] = None):
        self.incident = incident
        self.logdir = logdir
        tf.errors.InvalidArgumentError.__init__(self, None, None, self.message)

    @property
    def message(self) -> str:
        """What happened; composed at each read, since a bundle may have been removed."""
        if self.incident.diagnosis is None:
            lines = ['Bad step %s' % self.incident]
        else:  # first the cause, then the tensors that were bad
            cause = self.incident.diagnosis.splitlines()
            lines = ['Bad step %s: %s' % (self.incident.where, cause[0]), *cause[1:]]
            lines.append('%s; %s' % (self.incident.reason, self.incident.update))
        to_do = advice.what_to_do(self.incident)
        lines += ['what to do: ' + to_do] if to_do else []
        if self.logdir is not None and _is_there(path_in(self.logdir)):
            lines.append(report_hint(self.logdir))  # the page also says what to change
        elif self.incident.bundle is not None and _is_there(self.incident.bundle):
            lines.append(replay_hint(self.incident.bundle))
        return '\n'.join(lines)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self):
        return NanLossError, (self.incident, self.logdir)

    def _render_traceback_(self) -> List[str]:
        """What IPython shows instead of a traceback: the message, then the user's own lines."""
        parts = ['NanLossError: ' + self.message]
        frames = [
            frame for frame in traceback.extract_tb(self.__traceback__) if is_users(frame.filename)
        ]
        if frames:
            parts.append('raised in')
        for frame in frames:
            place = place_of(frame.filename)
            line = ': ' + frame.line if frame.line else ''
            parts.append('  %s, line %s, in %s%s' % (place, frame.lineno, frame.name, line))
        return '\n'.join(parts).split('\n')


def _is_there(path: str) -> bool:
    try:
        return files.exists(path)
    except tf.errors.OpError:  # a remote file system failed to answer
        return True


def with_short_traceback(function: _F) -> _F:
    """Lets a `NanLossError` leave a function without the frames beneath it.

    These frames are slimguard's own, and would stand between the user's line and the message. A
    KeyboardInterrupt that slimguard raises after a save also leaves without them. Frames of user
    code that the function called stay.
    """

    @functools.wraps(function)
    def raising_shortly(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except NanLossError as error:
            raise error.with_traceback(None) from error.__cause__
        except KeyboardInterrupt as error:
            beneath = error.__traceback__ and error.__traceback__.tb_next
            if not ends_in_slimguard(beneath):
                raise
            raise error.with_traceback(until_users(beneath)) from error.__cause__

    return cast(_F, raising_shortly)
