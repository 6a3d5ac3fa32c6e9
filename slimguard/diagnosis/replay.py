"""Runs a bad step again, out of its bundle: ``python -m slimguard replay BUNDLE``."""

import code
import os
import shlex
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from slimguard import gate as gates
from slimguard.diagnosis import bundle as bundles
from slimguard.diagnosis.bad_rows import batch_size, without_rows
from slimguard.diagnosis.bundle import Bundle, BundleError
from slimguard.diagnosis.diagnose import diagnose_step
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.rerun_step import ReplayError, Step
from slimguard.gate import Label
from slimguard.incidents.history import explosion_in
from slimguard.incidents.incident import Incident
from slimguard.system import files, logdirs, terminal, texts

_MOST_SHOWN = 4000  # characters of an error message
_MOST_OF_A_CAUSE = 200  # characters of a cause in the list of bundles

_WITHOUT = 'Without row %d (a copy of row %d in its place) the step is %s'
_DIFFERS = (
    'In the training this was bad: %s; ReLU or max-pooling may be the reason for the difference, '
    'since they can hide a NaN in a training and pass it on in a replay.'
)
_BANNER = """\
The bad step, before it ran. Here are:
  session, graph   as usual, with the variables as they were
  feed             what the step drew; session.run(tensor, feed)
  gate             what checks the step: gate.loss, gate.bad (by check: is it
                   bad?), gate.labels (by check: what it looks at)
  values           what the step drew, by the names of the training's graph
  diagnosis        what was found
  np, tf
For example: session.run(gate.loss, feed)"""


class Replay(NamedTuple):
    """The result of running a step again.

    Attributes:
      labels: what the gate found to be bad this time; empty if it found nothing.
      diagnosis: what made the step bad.
    """

    labels: List[Label]
    diagnosis: Diagnosis

    @property
    def came_back(self) -> bool:
        return bool(self.labels)


def main(path: files.Path, shell: bool = False, without: Optional[int] = None) -> int:
    """Replays a bundle and prints the result; of a log directory, its newest bundle.

    Raises only KeyboardInterrupt, BrokenPipeError, and SystemExit from the prompt.

    Args:
      path: the folder of the bundle, a log directory, or another folder with bundles, on any file
        system of `tf.io.gfile`.
      shell: whether to open a Python prompt with the session, the graph and the feed.
      without: a row of the batch to replace in a second run.

    Returns:
      The exit code: 0 if the failure came back, 1 if it did not, 2 if no replay was completed,
      since the bundle is damaged or cannot run here, or there is none.
    """
    try:
        folder = files.as_path(path, 'bundle')
        if not _is_bundle(folder):
            folder = _newest_in(folder)
        return _main(bundles.read(folder), shell, without)
    except (BundleError, ReplayError) as error:
        _complain(path, str(error))
    except tf.errors.OpError as error:
        _complain(path, 'TensorFlow %s cannot run it: %s' % (tf.__version__, error.message))
    except BrokenPipeError:  # the reader of our output has ended
        raise
    except Exception as error:  # libraries raise all kinds of errors for a bad bundle
        _complain(path, '%s: %s' % (type(error).__name__, error))
    return 2


def _complain(path: files.Path, what: str) -> None:
    terminal.complain('cannot replay %s: %s' % (os.fsdecode(path), texts.cut(what, _MOST_SHOWN)))


def _say(text: str) -> None:
    for line in text.split('\n'):
        terminal.say(line)


def _is_bundle(folder: str) -> bool:
    try:
        return bundles.is_bundle(folder)
    except tf.errors.OpError as error:
        raise BundleError('it cannot be read: %s' % error.message) from None


def _newest_in(folder: str) -> str:
    """The newest bundle in a log directory or another folder; says which others there are."""
    paths = bundles.paths(folder) or bundles.paths_in(folder)
    if not paths:
        raise BundleError(
            'it is no bundle (a folder with incident.json), and there is none in it (%s); %s'
            % (os.path.join(bundles.folder(folder), 'step-...'), logdirs.NAMED_BY)
        )
    if len(paths) > 1:
        _say('%d bundles; to run another than the newest, which is the last, name it:' % len(paths))
        for path in paths:
            _say('%s  %s' % (shlex.quote(path), texts.cut(_cause_in(path), _MOST_OF_A_CAUSE)))
        _say('')
    return paths[-1]


def _cause_in(path: str) -> str:
    """The cause of a bundle's incident, or why it cannot be read."""
    try:
        return Incident.from_dict(bundles.read_json(path)['incident']).cause
    except (BundleError, ValueError) as error:
        return str(error)


def _main(bundle: Bundle, shell: bool, without: Optional[int]) -> int:
    with Step(bundle.exported, bundle.variables, bundle.values) as step:
        size = None if without is None else _size_of_batch_with(step, without)
        _say('%s, made with TensorFlow %s' % (bundle.path, bundle.versions.get('tensorflow')))
        explosion = explosion_in(bundle.history)
        first = replay(step, explosion)
        _say(describe(first, bundle.incident))
        if without is not None and size is not None:
            whole = step.feed
            found = first.diagnosis.non_finite
            copied, fewer = without_rows(step, [without], size, found.rows if found else ())
            step.draw(fewer)
            rest = replay(step, explosion)
            still = filter(None, [_reason_of(rest.labels), rest.diagnosis.in_short])
            outcome = 'still bad: ' + '; '.join(still) if rest.came_back else 'clean.'
            _say(_WITHOUT % (without, copied, outcome))
            step.draw(whole)
        if shell:
            _open_shell(step, bundle, first.diagnosis)
    return 0 if first.came_back else 1


def replay(step: Step, explosion: str = '') -> Replay:
    """Runs the step with its gate again, and searches for what makes it bad.

    Args:
      step: the step.
      explosion: the sentence on an explosion in the steps before; '' if none.
    """
    labels = step.decide()
    return Replay(labels, diagnose_step(step, labels, explosion))


def describe(result: Replay, incident: Dict[str, Any]) -> str:
    """The result of a replay, in a few lines.

    Args:
      result: the result.
      incident: the fields of the step's `Incident`.
    """
    if not result.came_back:
        lines = ['The failure did not come back: run again, the step is finite.']
        lines.extend(result.diagnosis.not_seen)
        return '\n'.join(lines)
    reason = _reason_of(result.labels, str(incident.get('reason')))
    lines = ['The failure came back: ' + reason]
    recorded = incident.get('tensors') or ()
    if recorded and set(recorded) != set(gates.explain(result.labels).tensors):
        lines.append(_DIFFERS % texts.listed(recorded, 5))
    return '\n'.join([*lines, str(result.diagnosis)])


def _reason_of(labels: List[Label], recorded: str = '') -> str:
    """The reason why a step is bad, in words.

    Args:
      labels: what was bad.
      recorded: the reason of the `Incident`, if the step was run with the same values; else ''.
        Only this reason tells where a limit came from: a multiple of a median, or `max_loss`.
    """
    limits = {
        x.kind: 'above its limit: ' + x.name for x in labels if x.kind in (Label.LIMIT, Label.NORM)
    }
    is_limit = recorded and 'not finite' not in recorded and len(limits) == len(labels)
    return recorded if is_limit else gates.explain(labels, limits).reason


def _size_of_batch_with(step: Step, row: int) -> int:
    """The size of the batch; checks that it has `row` and another row to replace it.

    Raises:
      BundleError: if the batch does not have `row`, or has no other row.
    """
    size = batch_size(step)
    if size is None:
        raise BundleError('nothing that the step drew has rows, so none can be left out')
    if not 0 <= row < size:
        raise BundleError('there is no row %d; the batch has rows 0 to %d' % (row, size - 1))
    if size == 1:
        raise BundleError('row 0 is all there is of the batch')
    return size


def _open_shell(step: Step, bundle: Bundle, diagnosis: Diagnosis) -> None:
    step.reload()
    feed: Dict[Any, Any] = dict(step.feed)
    feed[step.gate.watched] = True
    names = {
        'session': step.session,
        'graph': step.graph,
        'feed': feed,
        'gate': step.gate,
        'values': bundle.values,
        'diagnosis': diagnosis,
        'np': np,
        'tf': tf,
    }
    with step.graph.as_default(), step.session.as_default():
        code.interact(banner=_BANNER, local=names, exitmsg='')
