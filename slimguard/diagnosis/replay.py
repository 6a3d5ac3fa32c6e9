"""Runs a bad step again, out of its bundle: ``python -m slimguard replay BUNDLE``."""

import code
import os
import shlex
import sys
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from slimguard import gate as gates
from slimguard.diagnosis import bundle as bundles
from slimguard.diagnosis.bundle import Bundle, BundleError
from slimguard.diagnosis.diagnose import diagnose_step
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.ranges import find_non_finite, numbers
from slimguard.diagnosis.rerun import ReplayError, StepCopy
from slimguard.gate import Label
from slimguard.incidents import record_table
from slimguard.system import files, terminal, texts

_MOST_SHOWN = 4000  # characters of an error message
_MOST_OF_A_REASON = 120
# What the reason of an incident says where something was not finite.
_NOT_FINITE = 'not finite'

_BANNER = """\
The bad step, before it ran. Here are:
  session, graph   as usual, with the variables as they were
  feed             what the step drew; session.run(tensor, feed)
  gate             gate.loss, gate.bad, gate.labels, ...
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
    """Replays a bundle and prints the result; for a log directory, lists its bundles.

    Raises nothing but KeyboardInterrupt, and SystemExit from the prompt.

    Args:
      path: the folder of the bundle, or a log directory, on any file system of `tf.io.gfile`.
      shell: whether to open a Python prompt with the session, the graph and the feed.
      without: a row of the batch to leave out for a second run.

    Returns:
      The exit code: 0 if the failure came back, 1 if it did not, 2 if no replay came to its end:
      the bundle is damaged or cannot run here, or `path` is no bundle.
    """
    try:
        folder = files.as_path(path, 'bundle')
        if not _is_bundle(folder):
            return _list(folder, without)
        return _main(bundles.read(folder), shell, without)
    except (BundleError, ReplayError) as error:
        _complain(path, str(error))
    except tf.errors.OpError as error:
        _complain(path, 'TensorFlow %s cannot run it: %s' % (tf.__version__, error.message))
    except Exception as error:  # a bundle can make libraries fail in unforeseen ways
        _complain(path, '%s: %s' % (type(error).__name__, error))
    return 2


def _complain(path: files.Path, what: str) -> None:
    _say(
        'slimguard: cannot replay %s: %s' % (os.fsdecode(path), texts.cut(what, _MOST_SHOWN)),
        sys.stderr,
    )


def _say(text: str, stream=None) -> None:
    """Prints text of a bundle or a library.

    Unlike `terminal.say` it keeps the line breaks, and a closed pipe leaves the exit code as it is.
    """
    stream = stream or sys.stdout
    if stream is None:  # the process was started with it closed
        return
    try:
        stream.write(terminal.encodable(texts.visible(text) + '\n', stream))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)


def _discard(stream) -> None:
    """Points a closed stream to /dev/null, or Python would complain of it when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _is_bundle(folder: str) -> bool:
    try:
        return bundles.is_bundle(folder)
    except tf.errors.OpError as error:
        raise BundleError('it cannot be read: %s' % error.message) from None


def _list(folder: str, without: Optional[int]) -> int:
    found = bundles.paths(folder)
    within, name = os.path.split(folder.rstrip('/'))
    if not found and name == os.path.basename(bundles.folder(within)):  # LOGDIR/slimguard
        found, folder = bundles.paths(within), within
    if not found:
        raise BundleError(
            'it is neither a bundle (a folder with incident.json) nor a log directory with bundles '
            '(%s)' % os.path.join(bundles.folder(folder), 'incident-...')
        )
    for path in found:
        _say(_line(path))
    option = '' if without is None else '--without %d ' % without
    _say(
        'slimguard: %s is a log directory with the bundles above, the newest last. Choose one: '
        'python -m slimguard replay %s%s' % (folder, option, shlex.quote(found[-1])),
        sys.stderr,
    )
    return 2


def _line(path: str) -> str:
    try:
        said = bundles.read_json(path)
    except BundleError as error:
        return '%s  cannot be read: %s' % (path, error)
    incident = said['incident']
    time, step = incident.get('time'), incident.get('step')
    when = record_table.when(time) if isinstance(time, (int, float)) else ''
    cause = (said['diagnosis'] or {}).get('trouble') or incident.get('reason')
    shown = (when, 'step %s' % step, texts.cut(cause, _MOST_OF_A_REASON))
    return '  '.join((path,) + shown).replace('\n', ' ')


def _main(bundle: Bundle, shell: bool, without: Optional[int]) -> int:
    _check_shapes(bundle)
    fewer = None if without is None else leave_out(bundle, without)
    with StepCopy(bundle.exported, bundle.variables) as copy:
        _say('%s, made with TensorFlow %s' % (bundle.path, bundle.versions.get('tensorflow')))
        found = replay(copy, bundle.values, _loss_of(bundle))
        if fewer is None:
            _say(describe(found, bundle.incident))
        else:
            _say(_describe_fewer(copy, bundle, fewer, found))
        if shell:
            _open_shell(copy, bundle, found.diagnosis)
    return 0 if found.came_back else 1


def replay(
    copy: StepCopy,
    values: Dict[str, np.ndarray],
    loss: Optional[float] = None,
    left_out: Optional[int] = None,
) -> Replay:
    """Runs the step again, gate and all, and searches for what makes it bad.

    Args:
      copy: the step.
      values: what it drew.
      loss: its loss in the training; None if that is not known, or if `values` are others.
      left_out: the row that was taken out of the batch, or None.
    """
    labels = copy.decide(values)
    return Replay(labels, diagnose_step(copy.step(values, left_out), labels, loss))


def _loss_of(bundle: Bundle) -> Optional[float]:
    """The loss in the training; None if that is not known."""
    loss = bundles.number(bundle.incident.get('loss'))
    return loss if isinstance(loss, float) else None


def describe(found: Replay, incident: Dict[str, Any]) -> str:
    """The result of a replay, in a few lines.

    Args:
      found: the result.
      incident: the fields of the step's `Incident`.
    """
    if not found.came_back:
        lines = ['The failure did not come back: run again, the step is finite.']
        lines.extend(found.diagnosis.not_seen)
        return '\n'.join(lines)
    reason = _reason_of(found.labels, incident)
    return 'The failure came back: %s\n%s' % (reason, found.diagnosis)


def _reason_of(labels: List[Label], incident: Dict[str, Any], is_same: bool = True) -> str:
    """The reason why a step is bad, in words.

    Only the incident tells where a limit came from: a multiple of a median, or `max_loss`.

    Args:
      labels: what was bad.
      incident: the fields of the `Incident`.
      is_same: whether the step drew the same values as in the incident.
    """
    said = incident.get('reason')
    said = said if isinstance(said, str) else ''
    limits = {
        label.kind: 'above its limit: ' + label.name
        for label in labels
        if label.kind == 'norm' or label.kind == 'limit' and gates.ABOVE_MAX_LOSS not in said
    }
    verdict = gates.explain(labels, limits)
    are_limits = {label.kind for label in labels} <= {'limit', 'norm'}
    were_limits = said and _NOT_FINITE not in said
    if is_same and are_limits and were_limits and list(verdict.tensors) == incident.get('tensors'):
        return said
    return verdict.reason


class Fewer(NamedTuple):
    """A batch without one of its rows."""

    row: int
    values: Dict[str, np.ndarray]
    replaced_by: Optional[int]  # the row copied in its place, if no row can be taken out


def leave_out(bundle: Bundle, row: int) -> Fewer:
    """What the step drew, without a row of the batch.

    An array belongs to the batch if its first dimension is the batch's. If the graph was built for
    batches of one size, a copy of another row, if possible a finite one, replaces the row.

    Raises:
      BundleError: if there is no such row, or no other.
    """
    rows = _batch_size(bundle)
    if rows is None:
        raise BundleError('nothing that the step drew has rows, so none can be left out')
    if not 0 <= row < rows:
        raise BundleError('there is no row %d; the batch has rows 0 to %d' % (row, rows - 1))
    if rows == 1:
        raise BundleError('row 0 is all there is of the batch')
    batch = {n: v for n, v in bundle.values.items() if np.ndim(v) and len(v) == rows}
    if all(_may_shrink(bundle, name) for name in batch):
        fewer = {name: np.delete(value, row, axis=0) for name, value in batch.items()}
        return Fewer(row, dict(bundle.values, **fewer), None)
    return _overwrite(bundle, batch, row)


def _overwrite(bundle: Bundle, batch: Dict[str, np.ndarray], row: int) -> Fewer:
    rows = len(next(iter(batch.values())))
    bad = {row}
    for value in batch.values():
        if value.dtype.kind not in 'OSUbiu':
            bad.update(find_non_finite(value).rows)
    others = [r for r in range(rows) if r not in bad] or [r for r in range(rows) if r != row]
    replaced = {}
    for name, value in batch.items():
        replaced[name] = value.copy()
        replaced[name][row] = value[others[0]]
    return Fewer(row, dict(bundle.values, **replaced), others[0])


def _batch_size(bundle: Bundle) -> Optional[int]:
    """The first dimension of the bad arrays; else that of most arrays; random ones count least."""
    sources = bundle.exported.names['sources']
    sizes: Dict[int, float] = {}
    for name, value in bundle.values.items():
        if not np.ndim(value):
            continue
        is_bad = value.dtype.kind not in 'OSUbiu' and not np.isfinite(numbers(value)).all()
        weight = 100.0 if is_bad else (0.01 if 'Random' in sources[name][1] else 1.0)
        sizes[len(value)] = sizes.get(len(value), 0.0) + weight
    return max(sizes, key=lambda size: sizes[size]) if sizes else None


def _static_shapes(bundle: Bundle) -> Dict[str, tf.TensorShape]:
    nodes = {node.name: node for node in bundle.exported.graph_def.node}
    shapes = {}
    for name, (stand_in, _) in bundle.exported.names['sources'].items():
        if stand_in not in nodes or nodes[stand_in].op != 'Placeholder':
            raise BundleError('%s is damaged: no placeholder %r' % (bundle.path, stand_in))
        shapes[name] = tf.TensorShape(nodes[stand_in].attr['shape'].shape)
    return shapes


def _check_shapes(bundle: Bundle) -> None:
    shapes = _static_shapes(bundle)
    for name, value in bundle.values.items():
        if not shapes[name].is_compatible_with(np.shape(value)):
            raise BundleError(
                '%s is damaged: %s has shape %s, and the graph expects %s'
                % (bundle.path, name, np.shape(value), shapes[name])
            )


def _may_shrink(bundle: Bundle, name: str) -> bool:
    shape = _static_shapes(bundle)[name]
    return shape.rank is None or shape.as_list()[0] is None


def _describe_fewer(copy: StepCopy, bundle: Bundle, fewer: Fewer, whole: Replay) -> str:
    """What leaving out a row has changed, and where to see all of the rest.

    Args:
      copy: the step.
      bundle: its bundle.
      fewer: what it drew, without the row.
      whole: what came of the step with the row.
    """
    try:
        left_out = fewer.row if fewer.replaced_by is None else None
        found = replay(copy, fewer.values, left_out=left_out)
    except tf.errors.InvalidArgumentError:
        if fewer.replaced_by is not None:
            raise
        # An op inside the graph relies on the size of the batch, though no placeholder does.
        rows = _batch_size(bundle)
        batch = {n: v for n, v in bundle.values.items() if np.ndim(v) and len(v) == rows}
        fewer = _overwrite(bundle, batch, fewer.row)
        found = replay(copy, fewer.values)
    incident = bundle.incident
    how = 'Without row %d' % fewer.row
    if fewer.replaced_by is not None:
        how += ' (a copy of row %d in its place, as the graph is made for batches of this size)' % (
            fewer.replaced_by
        )
    reason = ''
    if found.came_back:
        reason = _reason_of(found.labels, incident, is_same=False)
        how += ' the step is still bad: ' + _in_short(found, reason)
    else:
        how += ' the step is clean.'
    reason_with_it = _reason_of(whole.labels, incident)
    if reason_with_it == reason and whole.diagnosis.found:  # it is long, and has been said
        reason_with_it = ''
    return '\n'.join(
        [
            how,
            'With it: ' + _in_short(whole, reason_with_it),
            'The whole diagnosis: python -m slimguard replay ' + shlex.quote(bundle.path),
        ]
    )


def _in_short(found: Replay, reason: str) -> str:
    """What came of it, in a line."""
    if not found.came_back:
        return 'the failure did not come back; run again, the step is finite'
    return '; '.join(filter(None, [reason, found.diagnosis.in_short]))


def _open_shell(copy: StepCopy, bundle: Bundle, diagnosis: Diagnosis) -> None:
    copy.load_all()
    step = copy.step(bundle.values)
    names = {
        'session': copy.session,
        'graph': copy.graph,
        'feed': dict(step.feed),
        'gate': copy.gate,
        'values': bundle.values,
        'diagnosis': diagnosis,
        'np': np,
        'tf': tf,
    }
    names['feed'][copy.gate.watched] = True
    with copy.graph.as_default(), copy.session.as_default():
        code.interact(banner=_BANNER, local=names, exitmsg='')
