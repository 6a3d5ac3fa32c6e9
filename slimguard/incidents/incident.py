""":class:`Incident`: a bad step. To read a record needs no TensorFlow, so this imports none."""

import dataclasses
import math
import shlex
import time
from typing import Any, Dict, Optional, Tuple

from slimguard.system import texts


@dataclasses.dataclass(frozen=True)
class Incident:
    """A step that would have written something non-finite, or whose loss was bad.

    It never changes. When the hook learns more while it handles an incident, a new `Incident`
    replaces this one in the hook's `incidents`.

    Attributes:
      step: the global step before the bad step, such as 4 after four good steps. None if the graph
        has no global step.
      loss: the step's loss, most often NaN; None if it is not known.
      reason: what the gate or the hook saw, in a sentence.
      tensors: names of what was bad: the loss, a variable's gradient, a moving average.
      strategy: 'check_numerics' if the train op has TensorFlow's check, else 'hook'.
      time: seconds since the epoch.
      held: whether the step changed nothing. False only for a train op without a gate, whose update
        was written before the loss was seen.
      state_lost: whether variables were not finite even before the step. Then the training cannot
        continue from them, and an older checkpoint has to be restored.
      action: 'raise', 'stop', 'skip', 'rollback', 'save refused', 'error' if a callable of the user
        failed, 'interrupted' if Ctrl-C came before the action, or 'on_nan_loss' if a subclass of
        NanLossHook decided by itself. None until it is decided.
      restored: the state that a rollback restored.
      learning_rate: the factor of the learning rate since that rollback, if its policy has a
        `learning_rate`.
      advice: what may help, if a training that explodes has ended.
      gradient_norm: the norm of all gradients of the step together; None if it is not known.
      gradient_norm_ratio: this norm as a multiple of the median of the last good steps.
      diagnosis: what made the step bad, in a few lines, if the step was captured.
      bundle: the folder from which ``python -m slimguard replay BUNDLE`` runs the step again; None
        if there is none. Every bundle that `read_incidents` names exists.
      worker: the process of a cluster that ran the step, such as ``'/job:worker/task:1'``.
      started: when the process that ran the step imported slimguard, in seconds since the epoch: it
        tells the starts of one logdir apart. None in records of other origin.
    """

    step: Optional[int]
    loss: Optional[float]
    reason: str
    tensors: Tuple[str, ...]
    strategy: str
    time: float
    held: bool = True
    state_lost: bool = False
    action: Optional[str] = None
    restored: Optional[str] = None
    diagnosis: Optional[str] = None
    bundle: Optional[str] = None
    worker: Optional[str] = None
    learning_rate: Optional[float] = None
    advice: Optional[str] = None
    gradient_norm: Optional[float] = None
    gradient_norm_ratio: Optional[float] = None
    started: Optional[float] = None

    @classmethod
    def now(cls, **known) -> 'Incident':
        """An incident with the present time; takes all other attributes by name."""
        return cls(time=time.time(), started=_STARTED, **known)

    @classmethod
    def from_dict(cls, record: Dict[str, Any]) -> 'Incident':
        """The incident that `to_dict` made `record` of; unknown keys are ignored.

        Raises:
          ValueError: if it is no record of an incident: it lacks a step or a reason, or an
            attribute that should be a number is not.
        """
        if 'step' not in record or record.get('reason') is None:
            raise ValueError('no record of an incident: it lacks a step or a reason')
        known = dict(_WHERE_ABSENT, step=None)
        for field in dataclasses.fields(cls):
            if record.get(field.name) is not None:
                known[field.name] = _value_of(field.name, record[field.name])
        return cls(**known)

    def to_dict(self) -> Dict[str, Any]:
        """A dictionary for JSON; numbers that JSON lacks become 'nan', 'inf' or '-inf'."""
        record = dataclasses.asdict(self)
        record['tensors'] = list(self.tensors)
        for key in _NUMBERS:
            if record[key] is not None and not math.isfinite(record[key]):
                record[key] = str(record[key])
        return record

    @property
    def where(self) -> str:
        """The step, loss and process, such as 'at global step 9 (loss inf)'."""
        place = [] if self.step is None else ['at global step %d' % self.step]
        place += [] if self.worker is None else ['on ' + self.worker]
        known = [] if self.step is not None else ['no global step']
        known += [] if self.loss is None else ['loss %g' % self.loss]
        return ' '.join(place + ['(%s)' % ', '.join(known)] * bool(known))

    @property
    def cause(self) -> str:
        """What made the step bad, in one line; if that was not found, what was seen."""
        return (self.diagnosis or '').partition('\n')[0] or self.reason

    @property
    def reason_in_short(self) -> str:
        """The reason, without most of a long list of tensors."""
        reason, tensors = self.reason, self.tensors
        if len(tensors) > _NAMED + 1:
            for most in (len(tensors), _NAMED_IN_A_REASON):
                reason = reason.replace(texts.listed(tensors, most), texts.listed(tensors, _NAMED))
        return reason

    @property
    def update(self) -> str:
        """Whether the update was applied, in words."""
        return (
            'update not applied' if self.held else 'the update was written, as no gate checks this'
        )

    def __str__(self) -> str:
        return '%s: %s; %s' % (self.where, self.reason, self.update)


# A forked worker has that of its parent: they are of one start.
_STARTED = time.time()

# How many of a step's bad tensors messages and reasons name; `tensors` has all.
_NAMED, _NAMED_IN_A_REASON = 3, 5


# The values of attributes that have no default, for records that lack them.
_WHERE_ABSENT: Dict[str, Any] = {'loss': None, 'tensors': (), 'strategy': '', 'time': 0.0}

# The attributes that are numbers and may be NaN or Inf.
_NUMBERS = ('loss', 'gradient_norm', 'gradient_norm_ratio')
# The attributes that are finite numbers; a step is a whole number.
_FINITE = ('step', 'time', 'learning_rate', 'started')


def _value_of(name: str, value: Any) -> Any:
    """The value of an attribute, from what `Incident.to_dict` wrote under its name."""
    try:
        if name in ('held', 'state_lost'):
            return bool(value)
        if name in (*_NUMBERS, *_FINITE):
            number = float(value)
            if name in _FINITE and not math.isfinite(number):
                raise ValueError('not finite')
            return int(value) if name == 'step' else number
        return tuple(map(str, value)) if name == 'tensors' else str(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError('no record of an incident: its %s is %.50r' % (name, value)) from None


def replay_hint(bundle: str) -> str:
    """The command that runs a bad step again."""
    return 'to run it again: python -m slimguard replay ' + shlex.quote(bundle)


def report_hint(logdir: str, how_much: str = '') -> str:
    """The command that shows the incidents of a logdir as a page."""
    return 'to see what happened%s: python -m slimguard report %s' % (how_much, shlex.quote(logdir))
