"""What `run` says at the end of a script: which train ops were guarded, and what became of them."""

import os
from typing import Dict, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard.incidents.incident import Incident
from slimguard.system import terminal, texts

# So many train ops are named.
_MOST_NAMES = 3


class Seen:
    """What became of the trainings of a script.

    Attributes:
      train_ops: the names of the train ops that ran guarded, and how often each did; 0 where a
        `NanLossHook` of the script's own watched slim's loop.
      refused: the names of those that cannot be guarded, and why not.
      actions: what was done about incidents, and how often.
      logdirs: where the record and the bundles are.
      runs: how many runs of sessions trained nothing that is known.
      own_steps: how many steps a `NanLossHook` of the script's own watched.
      writing_runs: how many runs trained nothing, and were guarded for what they wrote.
      refused_saves: how many saves were refused, as a variable was not finite.
      error: what ended the script; None if it came to its end.
    """

    def __init__(self) -> None:
        self.train_ops: Dict[str, int] = {}
        self.refused: Dict[str, str] = {}
        self.actions: Dict[str, int] = {}
        self.logdirs: Dict[str, None] = {}
        self.runs = 0
        self.writing_runs = 0
        self.refused_saves = 0
        self.own_steps = 0
        self.error: Optional[BaseException] = None

    def note_steps(self, train_op: str, steps: int) -> None:
        """Notes steps of a guarded train op."""
        self.train_ops[train_op] = self.train_ops.get(train_op, 0) + steps

    def note_run(self, train_ops: Sequence[str]) -> None:
        """Notes a guarded run: a step of train ops, or of none, if it only wrote."""
        self.writing_runs += not train_ops
        for train_op in train_ops:
            self.note_steps(train_op, 1)

    def note_incident(self, incident: Incident, logdir: str) -> None:
        """Notes an incident that was acted on, and the logdir with its record."""
        action = str(incident.action)
        self.actions[action] = self.actions.get(action, 0) + 1
        self.logdirs[logdir] = None

    def note_refused_save(self, logdir: str) -> None:
        """Notes a save that was refused, and the logdir with the record of it."""
        self.refused_saves += 1
        self.logdirs[logdir] = None

    def __str__(self) -> str:
        if not self.train_ops and self.own_steps:
            return _BY_ITSELF % _counted(self.own_steps, 'step')
        if not self.train_ops:
            return 'nothing here was guarded: %s' % _why_nothing(self)
        steps = sum(self.train_ops.values())
        said = 'guarded %s' % _named(list(self.train_ops))
        said += ': %s' % _counted(steps, 'step') if steps else ''
        if self.writing_runs:
            said += ' and %s that only wrote' % _counted(self.writing_runs, 'run')
        incidents = sum(self.actions.values())
        if not incidents:
            said += ', no incident'
        else:
            done = ['%s %d' % each for each in self.actions.items()]
            said += ', %s (%s)' % (_counted(incidents, 'incident'), ', '.join(done))
        if self.refused_saves:
            said += ', %s refused as not finite' % _counted(self.refused_saves, 'save')
        if self.logdirs:
            folders = [os.path.join(logdir, 'slimguard') for logdir in self.logdirs]
            said += '; record and bundles: %s' % ', '.join(folders)
        if self.refused:
            said += '; NOT guarded: %s' % _named(list(self.refused))
        return said


class Ending(NamedTuple):
    """Says, once, what became of a script's trainings; a fork of the process says nothing.

    Attributes:
      seen: what became of them.
      process: the number of the process that says it.
    """

    seen: Seen
    process: int

    def say(self) -> None:
        """Says it on stderr, if anybody listens there."""
        if os.getpid() == self.process:
            terminal.complain(str(self.seen))


def after_stop(newest: Optional[str]) -> str:
    """What is said where nobody has caught the end that 'stop' makes.

    Args:
      newest: the checkpoint that the script saved last, or None.
    """
    saved = 'It has saved no checkpoint, so what it has trained is lost'
    if newest is not None:
        saved = 'The newest checkpoint that it saved is ' + newest
    return (
        "'stop' has ended the script inside its loop: what follows the loop, such as a save, was "
        "not run. %s. 'raise' saves first, once the script has saved; or catch "
        'tf.errors.OutOfRangeError around the loop' % saved
    )


_BY_ITSELF = (
    'the script guards itself, by a NanLossHook, slimguard.watch or slimguard.train of its own: '
    '%s. What it says there holds, and the options of run were not used for them'
)


def _why_nothing(seen: Seen) -> str:
    if seen.refused:
        name, why = next(iter(seen.refused.items()))
        return 'train op %r cannot be: %s' % (name, texts.cut(why, 300))
    covers = (
        'slimguard guards what an optimizer of TensorFlow 1 (tf.compat.v1.train.Optimizer) writes '
        'when a session runs it'
    )
    if seen.runs:
        return '%s, and of the %s of a session none did that' % (covers, _counted(seen.runs, 'run'))
    if seen.error is not None:
        hint = _MAY_BE_OF_1 if _may_be_of_tensorflow_1(seen.error) else ''
        return 'the script ended before it ran a session' + hint
    if tf.executing_eagerly():
        return (
            '%s, and this script ran no session: TensorFlow runs eagerly. For a script written for '
            'TensorFlow 1, use --tf1' % covers
        )
    if _others_computed():
        return '%s, and this script ran no session, but other processes: %s' % (covers, _OTHERS)
    return '%s, and this script ran no session' % covers


# What a process takes that imports TensorFlow, and more than what others are started for.
_CPU_OF_TENSORFLOW = 1.0
_OTHERS = 'each is guarded only if run starts it too, or if it is a fork of this one'


def _others_computed() -> bool:
    """Whether processes that were started by this one, and waited for, may have trained."""
    return os.times().children_user > _CPU_OF_TENSORFLOW


_MAY_BE_OF_1 = '. If it was written for TensorFlow 1, use --tf1'


def _may_be_of_tensorflow_1(error: BaseException) -> bool:
    """Whether an error may be one that TensorFlow 2 raises in a script for TensorFlow 1."""
    if tf.__version__.startswith('1.') or not isinstance(error, Exception):
        return False
    if type(error).__name__ == 'DuplicateFlagError':  # of a flag that absl has defined since
        return True
    return any(name in str(error) for name in ('tensorflow', 'tf.', 'eager'))


def _counted(number: int, what: str) -> str:
    return '%d %s%s' % (number, what, '' if number == 1 else 's')


def _named(names: List[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ', '.join(names[:_MOST_NAMES]) + (' and %d more' % more if more > 0 else '')
