"""What `run` prints at the end of a script: which train ops were guarded, and what happened."""

import atexit
import multiprocessing.util
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import numpy as np
import tensorflow as tf

from slimguard.gate.reading.losses import NOT_KNOWN
from slimguard.incidents.fallback_chain import skipped_in_words
from slimguard.incidents.incident import Incident, report_hint
from slimguard.incidents.policies import Rollback, Skip
from slimguard.incidents.record_file import missing_in, path_in
from slimguard.system import files, terminal, texts
from slimguard.system.log import log
from slimguard.training import stop_signals
from slimguard.training.fetch_structures import leaves

# How many train ops, or variables, a sentence names.
_MOST_NAMES = 3


class Account:
    """The account of a script's trainings.

    Attributes:
      train_ops: the names of the train ops that ran guarded, and how often each ran.
      refused: by name, why a train op cannot be guarded.
      actions: the actions on incidents, and how often each was taken.
      steps: how many guarded runs there were.
      skipped: in how many of these runs the batch was skipped.
      why_skipped: the cause of the last skipped batch that was diagnosed.
      learning_rate: the factor of the learning rate since the last rollback; or None.
      logdirs: by logdir with a record and bundles, the numbers of incidents and of refused saves.
      missing: by logdir, how many incidents could not be written to its record.
      runs: how many runs of sessions were not recognized as training.
      children: how many forks and children of `multiprocessing` this process started.
      own_steps: how many steps a `NanLossHook` of the script's own watched.
      writing_runs: how many runs did not train, but were guarded because they write.
      refused_saves: how many saves were refused because a variable was not finite.
      not_finite: the names of those variables.
      since_nan: how many guarded runs followed the last skipped or rolled-back run that returned a
        NaN to the script; None if no run returned one.
      jump: the text about a written step with a number far beyond all earlier ones; '' if there was
        none.
      error: the error that ended the script; None if the script reached its end.
      saved_at_signal: the checkpoint that was saved at SIGTERM or Ctrl-C, in words; or ''.
      has_names_of_1: whether the script runs with the names and graphs of TensorFlow 1.
      before_first: called before the first step, the first run that only writes, or the first
        refused train op is noted.
    """

    def __init__(self) -> None:
        self.train_ops: Dict[str, int] = {}
        self.refused: Dict[str, str] = {}
        self.actions: Dict[str, int] = {}
        self.steps = self.skipped = 0
        self.why_skipped = ''
        self.learning_rate: Optional[float] = None
        self.logdirs: Dict[str, Dict[str, int]] = {}
        self.missing: Dict[str, int] = {}
        self.runs = self.children = 0
        self.writing_runs = 0
        self.refused_saves = 0
        self.not_finite: Dict[str, None] = {}
        self.own_steps = 0
        self.since_nan: Optional[int] = None
        self.jump = ''
        self.error: Optional[BaseException] = None
        self.saved_at_signal = ''
        self.has_names_of_1 = False
        self.before_first: Callable[[], object] = lambda: None
        self._without_loss: Set[str] = set()  # train ops that a log line named

    def refuse(self, name: str, error: Exception) -> None:
        """Logs, once for each name, that something is not guarded, and why."""
        if name not in self.refused:
            self._note_first()
            what = getattr(error, 'of', 'train op')
            self.refused[name] = '%s %r cannot be: %s' % (what, name, error)
            log().error('%s %r is NOT guarded: %s', what, name, error)

    def say_no_loss(self, name: str, why: str) -> None:
        """Logs, once, that the loss of a train op is not known; `why` is '' if it has no loss."""
        if name not in self._without_loss:
            self._without_loss.add(name)
            log().warning(NOT_KNOWN, name, why or 'it computes no gradients of a loss')

    def _note_first(self) -> None:
        if not self.has_trained:
            self.before_first()

    @property
    def has_trained(self) -> bool:
        """Whether any run is known to have trained or written values, guarded or not."""
        return bool(self.train_ops or self.refused or self.writing_runs)

    def note_run(self, train_ops: Sequence[str]) -> None:
        """Notes a guarded run: a step of train ops, or of no train op if it only wrote."""
        self._note_first()
        self.steps += 1
        if self.since_nan is not None:
            self.since_nan += 1
        self.writing_runs += not train_ops
        for train_op in train_ops:
            self.train_ops[train_op] = self.train_ops.get(train_op, 0) + 1

    def note_fetched(self, values: Any) -> None:
        """Notes the values that the script got from a run that wrote nothing."""
        if any(map(_is_nan, leaves(values))):
            self.since_nan = 0

    @property
    def incidents(self) -> int:
        """The number of incidents on which a policy acted."""
        return sum(self.actions.values())

    def note_incidents(
        self, incidents: Sequence[Incident], logdir: Optional[str], missing: int = 0
    ) -> None:
        """Notes the incidents of one batch.

        Args:
          incidents: the incidents.
          logdir: the logdir with their record, or None.
          missing: how many incidents could not be written to the record.
        """
        last = incidents[-1]
        if last.action == Skip.action:
            self.skipped += 1
            self.why_skipped = last.cause if last.diagnosis else self.why_skipped
        for incident in incidents:
            action = str(incident.action)
            self.actions[action] = self.actions.get(action, 0) + 1
            self.learning_rate = incident.learning_rate or self.learning_rate
            if action == Rollback.action:
                self.jump = ''  # the rollback undid it
        if logdir is not None:
            self._note_record(logdir, len(incidents), 'incident')
            if missing:
                self.missing[logdir] = self.missing.get(logdir, 0) + missing

    def _note_record(self, logdir: str, number: int, what: str) -> None:
        there = self.logdirs.setdefault(logdir, {})
        there[what] = there.get(what, 0) + number

    def note_child(self) -> None:
        """Notes that this process started another process, which has an account of its own."""
        self.children += 1

    def note_saved(self, said: str) -> None:
        """Notes the checkpoint that was saved at a signal, in words."""
        self.saved_at_signal = said

    def note_jump(self, said: str) -> None:
        """Notes that a step was written with a number far beyond all earlier ones."""
        self.jump = self.jump or said

    def note_refused_save(self, names: Sequence[str], logdir: str) -> None:
        """Notes a save that was refused for variables of these names; `logdir` has the record."""
        self.refused_saves += 1
        self.not_finite.update(dict.fromkeys(names))
        self._note_record(logdir, 1, 'refused save')

    def log_at_end(self) -> None:
        """Logs the skipped steps, and a step with a number far beyond all earlier ones."""
        if self.skipped:
            told = skipped_in_words(self.skipped, self.steps, self.why_skipped)
            log().warning('%s', '\n    '.join([told + '.', *self.commands()]))
        if self.jump:
            log().warning('%s.', self.jump)

    def __str__(self) -> str:
        return '\n'.join(self.lines())

    def lines(self) -> List[str]:
        """The result, further facts with a line for each, and the next command."""
        told = []
        if self.train_ops or self.writing_runs:
            told.append(self._guarded() + self._saves())
            if self.jump:
                told.append(self.jump)
            if self.refused:
                told.append('NOT guarded: %s' % texts.listed(list(self.refused), _MOST_NAMES))
            if self.saved_at_signal:
                told.append(self.saved_at_signal)
            is_ours = self.actions.keys() & {'raise', 'stop'}  # slimguard ended the script
            if self.since_nan is not None and self.since_nan <= _SOON and not is_ours:
                told.append(_ENDED_AT_NAN % ('right' if self.since_nan == 0 else 'one step'))
        elif self.children and not self.refused and not self.own_steps:
            no_update = 'whose %s of a session made no update' % _counted(self.runs, 'run')
            here = no_update if self.runs else 'which ran no session'
            told.append(_IN_CHILDREN % (here, _counted(self.children, 'other')) + self._saves())
        elif not self.own_steps:
            told.append('nothing here was guarded: %s%s' % (_why_nothing(self), self._saves()))
        if self.own_steps and not self.train_ops:
            told.append(_BY_ITSELF % _counted(self.own_steps, 'step'))
        told += [missing_in(path_in(logdir), count) for logdir, count in self.missing.items()]
        return told + self.commands()

    def _guarded(self) -> str:
        """What was guarded, and how many incidents there were."""
        parts = []
        if self.train_ops:
            names = texts.listed(list(self.train_ops), _MOST_NAMES)
            parts.append('%s: %s' % (names, _counted(sum(self.train_ops.values()), 'step')))
        if self.writing_runs:
            parts.append('%s that only wrote' % _counted(self.writing_runs, 'run'))
        said = 'guarded %s' % ' and '.join(parts)
        if not self.incidents:
            said += ', no incident'
        else:
            done = ['%s %d' % each for each in self.actions.items()]
            rate = '' if self.learning_rate is None else _RATE % self.learning_rate
            counted = _counted(self.incidents, 'incident')
            said += ', %s in this run (%s%s)' % (counted, ', '.join(done), rate)
        return said

    def commands(self) -> List[str]:
        """For each logdir with a record, the command that shows what happened."""
        told = getattr(self.error, 'logdir', None)  # names the logdir if it ended the script
        there = [logdir for logdir in self.logdirs if logdir != told and _has_record(logdir)]
        if len(there) < 2:
            return list(map(report_hint, there))
        return [report_hint(each, ' (%s)' % self._held(each)) for each in there[:_MOST_NAMES]]

    def _held(self, logdir: str) -> str:
        """In words, how many incidents of this run a logdir's record has."""
        return ', '.join(_counted(n, what) for what, n in self.logdirs[logdir].items())

    def _saves(self) -> str:
        """How many saves were refused."""
        if not self.refused_saves:
            return ''
        saves, names = _counted(self.refused_saves, 'save'), list(self.not_finite)
        return ', %s refused as not finite (%s)' % (saves, texts.listed(names, _MOST_NAMES))


class Ending:
    """Prints the account of a script's trainings, once; a fork that trains prints its own.

    Args:
      seen: the account.
    """

    def __init__(self, seen: Account):
        self._seen = seen
        self._process = os.getpid()
        self._child = ''  # 'a fork' or 'a child' of the script's process; '' for that process
        self._has_said = False

    def register(self, is_spawned: bool = False) -> None:
        """Makes this process and its forks print the account at their end.

        Args:
          is_spawned: whether the script's process spawned this one.
        """
        if is_spawned:
            self._become('a child')
        atexit.register(self.say)
        stop_signals.last_words.append(self.say)
        stop_signals.note_saved.append(self._seen.note_saved)
        if hasattr(os, 'register_at_fork'):  # not on Windows, where there are no forks
            note_child = self._seen.note_child
            os.register_at_fork(after_in_child=self._become_fork, after_in_parent=note_child)

    def say(self) -> None:
        """Prints the account to stderr, if stderr is open."""
        is_silent = self._child and not self._seen.has_trained
        if self._has_said or os.getpid() != self._process or is_silent:
            return
        self._has_said = True
        where = 'in process %d, %s: ' % (self._process, self._child) if self._child else ''
        result, *others = self._seen.lines()
        terminal.complain(where + result)
        for line in others:
            terminal.complain(line)

    def _become_fork(self) -> None:
        # The parent reports the earlier steps.
        vars(self._seen).update(vars(Account()))
        self._become('a fork')

    def _become(self, child: str) -> None:
        self._seen.before_first = self._say_at_end_of_child
        self._process, self._child = os.getpid(), child

    def _say_at_end_of_child(self) -> None:
        # A child of `multiprocessing` may not run `atexit`, and drops finalizers registered before
        # its work began.
        multiprocessing.util.Finalize(None, self.say, exitpriority=-100)


def after_stop(newest: Optional[str]) -> str:
    """The last line of a script that did not catch the error by which 'stop' ends it.

    Args:
      newest: the checkpoint that the script saved last, or None.
    """
    saved = 'It saved no checkpoint, so what it trained is lost'
    if newest is not None:
        saved = 'The newest checkpoint that it saved is ' + newest
    return (
        "'stop' ended the script inside its loop: the code after the loop, such as a save, did not "
        "run. %s. To keep the last state, use 'raise', which saves first if the script has saved "
        'before, or catch tf.errors.OutOfRangeError around the loop' % saved
    )


_RATE = '; learning rate x%g since the last rollback'
# A script may check a loss one step later.
_SOON = 1
_ENDED_AT_NAN = (
    'the script ended %s after it had fetched a NaN of a bad step, whose update was not applied. '
    'That is fine if it was to end there. If it ended for the NaN, by a check such as '
    'assert not np.isnan(loss), take the check out'
)
_BY_ITSELF = (
    'the script guards itself with a NanLossHook, slimguard.watch or slimguard.train: %s. Its own '
    'settings hold there, and the options of run do not'
)


def _why_nothing(seen: Account) -> str:
    if seen.refused:
        return texts.cut(next(iter(seen.refused.values())), 350)
    runs = _counted(seen.runs, 'run') + ' of a session'
    if seen.error is not None and seen.runs:
        return 'the script ended early, and %s made no update' % runs
    covers = (
        'slimguard guards the updates that a session runs, those of TensorFlow 1 optimizers '
        '(tf.compat.v1.train.Optimizer) and those that the script computes'
    )
    if seen.runs:
        return '%s, and %s made none' % (covers, runs)
    if seen.error is not None:
        may_be_of_1 = not seen.has_names_of_1 and _may_be_of_tensorflow_1(seen.error)
        return 'the script ended before it ran a session' + _MAY_BE_OF_1 * may_be_of_1
    said = covers + ', and this script ran no session'
    if tf.executing_eagerly():
        said += ': it enabled eager execution' if seen.has_names_of_1 else _IS_EAGER
    return said + _OTHERS


_IN_CHILDREN = (
    'nothing was guarded in this process, %s; it started %s, and each that was guarded has a last '
    'line of its own'
)
_OTHERS = (
    '. Another process that it started is guarded only if run starts it too, or if it is a fork or '
    'a child of multiprocessing'
)
_IS_EAGER = ': TensorFlow runs eagerly. For a script written for TensorFlow 1, use --tf1'
_MAY_BE_OF_1 = '. If it was written for TensorFlow 1, use --tf1'


def _may_be_of_tensorflow_1(error: BaseException) -> bool:
    """Whether an error may be one that TensorFlow 2 raises in a script for TensorFlow 1."""
    if tf.__version__.startswith('1.') or not isinstance(error, Exception):
        return False
    if type(error).__name__ == 'DuplicateFlagError':  # absl now defines some flags of scripts
        return True
    return any(name in str(error) for name in ('tensorflow', 'tf.', 'eager'))


def _has_record(logdir: str) -> bool:
    record = path_in(logdir)
    return files.is_remote(record) or files.is_file(record)


def _is_nan(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind == 'f' and bool(np.isnan(array).any())


def _counted(number: int, what: str) -> str:
    return '%d %s' % (number, what if number == 1 else what + 's')
