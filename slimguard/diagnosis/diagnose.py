"""Finds the op that made a step bad, by running the step again with what it drew.

    diagnosis = diagnose(session, capture, capture.take(session), labels)
    print(diagnosis)         # a few lines
    diagnosis.to_dict()      # what a page or a file needs

How it works
------------
All float tensors of the forward and the backward pass are fetched, part by part, and their ranges
noted. Then the search walks back from the values that the gate looks at, along what is not finite,
to where it began: an op whose output is not finite and whose inputs are; or a source, a variable
or a constant, which have no inputs. It is not enough to take the first tensor that is not finite:
a mask of minus infinity is meant to be there, and nothing bad comes of it.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis import causes
from slimguard.diagnosis.capture import Capture
from slimguard.diagnosis.ranges import Range, Spots, find_spots, measure
from slimguard.diagnosis.rerun import (
    Step,
    StepCopy,
    can_run_live,
    export,
    live_step,
    variables_in_chunks,
)
from slimguard.diagnosis.source_lines import Line
from slimguard.gate import Label
from slimguard.graph import key

# Hand their first input on, in another shape or none: its range is theirs.
_SAME_NUMBERS = frozenset(
    'Identity Reshape Squeeze ExpandDims StopGradient PreventGradient Snapshot CheckNumerics '
    'CheckNumericsV2'.split()
)
_LARGE_WEIGHT = 1e6


class Input(NamedTuple):
    """An input of the op at fault."""

    name: str
    range: Optional[Range]  # None if it is no float tensor, or could not be looked at


class Row(NamedTuple):
    """One line of the table of ranges along the step."""

    op: str
    type: str
    tensor: str
    phase: str
    range: Range

    def to_dict(self) -> Dict[str, Any]:
        return dict(self._asdict(), range=self.range.to_dict())


class Diagnosis(NamedTuple):
    """What made a step bad.

    Attributes:
      phase: where: 'input', 'forward', 'backward' or 'update'; 'variable' if a weight was not
        finite before the step; 'constant'; or 'unknown'.
      trouble: what happened, in a sentence without a full stop.
      op, op_type: the op at fault, or the one that drew the bad input. None if unknown.
      tensor: the name of its bad output.
      line: the user's line that made it; of a gradient op, the line of the forward op.
      forward_op: for a gradient op, the op whose gradient it computes.
      output: the range of that output.
      inputs: its inputs.
      spots: where the output is not finite, or None.
      not_seen: sentences about where it could not look.
      ranges: the range of each float tensor of the step, in the order of the ops.
    """

    phase: str
    trouble: str
    op: Optional[str] = None
    op_type: Optional[str] = None
    tensor: Optional[str] = None
    line: Optional[Line] = None
    forward_op: Optional[str] = None
    output: Optional[Range] = None
    inputs: Tuple[Input, ...] = ()
    spots: Optional[Spots] = None
    not_seen: Tuple[str, ...] = ()
    ranges: Tuple[Row, ...] = ()

    @property
    def found(self) -> bool:
        return self.phase != 'unknown'

    def __str__(self) -> str:
        lines = ['%s: %s' % (_PHASES[self.phase], self.trouble)]
        if self.op is not None:
            of = ', gradient of %s' % self.forward_op if self.forward_op else ''
            lines.append('  %s (%s%s)' % (self.tensor or self.op, self.op_type, of))
        if self.line is not None:
            lines.append('  %s' % (self.line,))
        for given in self.inputs[:5]:
            if given.range is not None:
                lines.append('  input %s: %s' % (given.name, given.range))
        if self.output is not None:
            lines.append('  output: %s' % (self.output,))
        if self.spots is not None and self.spots.positions:
            lines.append('  ' + _where(self.spots))
        lines.extend('  ' + sentence for sentence in self.not_seen)
        return '\n'.join(lines)

    def to_dict(self) -> Dict[str, Any]:
        """The same as dictionaries, lists, strings and numbers; a float may be NaN."""
        return {
            'phase': self.phase,
            'trouble': self.trouble,
            'op': self.op,
            'op_type': self.op_type,
            'tensor': self.tensor,
            'line': None if self.line is None else dict(self.line._asdict()),
            'forward_op': self.forward_op,
            'output': None if self.output is None else self.output.to_dict(),
            'inputs': [
                {'name': i.name, 'range': None if i.range is None else i.range.to_dict()}
                for i in self.inputs
            ],
            'rows': [] if self.spots is None else self.spots.rows,
            'positions': []
            if self.spots is None
            else [[list(place), value] for place, value in self.spots.positions],
            'not_seen': list(self.not_seen),
            'ranges': [row.to_dict() for row in self.ranges],
        }


_PHASES = {
    'input': 'in the input',
    'forward': 'in the forward pass',
    'backward': 'in the backward pass',
    'update': 'in the update',
    'variable': 'a variable was bad before the step',
    'constant': 'a constant is bad',
    'unknown': 'not found',
}


def diagnose(
    session, capture: Capture, values: Dict[str, np.ndarray], labels: Sequence[Label] = ()
) -> Diagnosis:
    """Finds what made the last step bad. Writes nothing and draws nothing.

    Args:
      session: the session of the training, with the variables as the bad step left them.
      capture: the `Capture` of the train op.
      values: what the step drew, as `capture.take` returned it.
      labels: what the gate found to be bad: the labels of the true elements of `gate.bad`.

    Raises:
      tf.errors.OpError: if running the step again fails.
      slimguard.diagnosis.rerun.ReplayError: if it can only run in a graph of its own, and that
        fails.
    """
    if can_run_live(capture, values):
        return diagnose_step(live_step(session, capture, values), labels)

    def variables(names):
        return variables_in_chunks(session, capture, names)

    with StepCopy(export(capture), variables) as copy:
        return diagnose_step(copy.step(values), labels)


def diagnose_step(step: Step, labels: Sequence[Label] = ()) -> Diagnosis:
    """The same for a step from anywhere."""
    return _Search(step, labels).diagnosis()


class _Search:
    def __init__(self, step: Step, labels: Sequence[Label]):
        self._step = step
        self._labels = labels
        self._order = {op: number for number, op in enumerate(step.ops)}
        self._phases = self._find_phases()
        self._fixed = self._find_fixed()
        self._ranges: Dict[Tuple[tf.Operation, int], Range] = {}
        self._look()

    # Looking.

    def _look(self) -> None:
        step = self._step
        for tensor, value in step.feed.items():
            if graphs.is_float(tensor):
                self._ranges[key(tensor)] = measure(value, tensor.dtype.base_dtype.name)
        floats = [t for op in step.ops for t in self._outputs_to_look_at(op)]
        for chunk in step.in_chunks(floats):
            for tensor, value in zip(chunk, step.fetch(chunk)):
                if value is not None:
                    dtype = tensor.dtype.base_dtype.name
                    self._ranges[key(tensor)] = measure(value, dtype)
            value = None
        for op in step.ops:
            if op.type in _SAME_NUMBERS and key(op.outputs[0]) not in self._ranges:
                found = self._ranges.get(key(op.inputs[0]))
                if found is not None and graphs.is_float(op.outputs[0]):
                    self._ranges[op, 0] = found

    def _outputs_to_look_at(self, op) -> List[tf.Tensor]:
        if op.type in ('Switch', 'RefSwitch'):
            return []
        if op.type in _SAME_NUMBERS and not graphs.is_reference(op.inputs[0]):
            return []
        return [
            t
            for t in op.outputs
            if graphs.is_float(t)
            and not self._step.is_fed(t)
            and self._step.can_fetch(t)
            and (t.consumers() or len(op.outputs) == 1)
        ]

    def _find_phases(self) -> Dict[tf.Operation, str]:
        step = self._step
        loss = step.gate.loss
        forward = set() if loss is None else set(graphs.ancestors([loss.op]))
        phases: Dict[tf.Operation, str] = {}
        for op in step.ops:
            if op in forward:
                phases[op] = 'forward'
            elif step.origins(op.name).forward is not None or any(
                phases.get(t.op) == 'backward' for t in op.inputs
            ):
                phases[op] = 'backward'
            else:
                phases[op] = 'update' if loss is not None else 'forward'
        return phases

    def _find_fixed(self) -> Set[tf.Operation]:
        """Ops that are the same in every step, for they need no variable and nothing drawn."""
        fixed: Set[tf.Operation] = set()
        for op in self._step.ops:
            given = [t for t in op.inputs]
            if op.type in graphs.VARIABLES or any(self._step.is_fed(t) for t in op.outputs):
                continue
            if graphs.is_stateful(op):
                continue
            if all(t.op in fixed and not self._step.is_fed(t) for t in given):
                fixed.add(op)
        return fixed

    # Finding.

    def diagnosis(self) -> Diagnosis:
        found = self._find()
        return found._replace(not_seen=tuple(self._not_seen(found)), ranges=tuple(self._rows()))

    def _find(self) -> Diagnosis:
        bad = [t for t in self._step.checked if self._is_bad(t)]
        kinds = {label.kind for label in self._labels}
        if not bad and not kinds.isdisjoint(['value']):
            bad = [t for op in self._step.ops for t in op.outputs if self._is_bad(t)]
        if bad:
            return self._culprit(self._where_it_began(bad))
        for kind, explain in (
            ('square', self._square),
            ('limit', self._limit),
            ('state', self._update),
        ):
            if kind in kinds:
                return explain([label.name for label in self._labels if label.kind == kind][0])
        return Diagnosis('unknown', 'run again with what it drew, the step is finite')

    def _is_bad(self, tensor) -> bool:
        found = self._ranges.get(key(tensor))
        return found is not None and not found.is_finite

    def _where_it_began(self, bad: Sequence[tf.Tensor]) -> tf.Tensor:
        """Walks back along what is not finite; of several beginnings, takes the first."""
        beginnings = []
        seen = set()
        waiting = list(bad)
        while waiting:
            tensor = waiting.pop()
            if key(tensor) in seen:
                continue
            seen.add(key(tensor))
            before = [t for t in self._inputs(tensor) if self._is_bad(t)]
            waiting.extend(before)
            if not before:
                beginnings.append(tensor)
        return min(beginnings, key=self._rank)

    def _rank(self, tensor) -> Tuple[bool, int, int]:
        phases = ('forward', 'backward', 'update')
        if self._step.is_fed(tensor):
            return False, -1, 0
        phase = self._phases.get(tensor.op, 'forward')
        # A constant was the same in all the good steps.
        return tensor.op in self._fixed, phases.index(phase), self._order.get(tensor.op, 0)

    def _inputs(self, tensor) -> List[tf.Tensor]:
        """The inputs of a tensor's op; in place of one that nobody could look at, what it needs."""
        if self._step.is_fed(tensor):
            return []
        found = []
        seen = set()
        waiting = list(tensor.op.inputs)
        while waiting:
            given = waiting.pop(0)
            if key(given) in seen:
                continue
            seen.add(key(given))
            dtype = given.dtype.base_dtype
            if key(given) in self._ranges or self._step.is_fed(given):
                found.append(given)
            elif graphs.is_float(given) or dtype in (tf.resource, tf.variant):
                if given.op.type not in graphs.VARIABLES:
                    waiting.extend(given.op.inputs)
            else:
                found.append(given)
        return found

    # Telling.

    def _culprit(self, tensor: tf.Tensor) -> Diagnosis:
        step, op = self._step, tensor.op
        given = [] if step.is_fed(tensor) else self._inputs(tensor)
        floats = [t for t in given if key(t) in self._ranges]
        values = step.fetch([tensor] + floats)
        output, inputs = values[0], values[1:]
        spots = find_spots(output)
        told = self._tell(tensor, spots=spots)
        if step.is_fed(tensor):
            trouble = _bad_data(told.output, spots)
            if told.op_type in graphs.CALLS:
                trouble += '; it comes out of a function, which cannot be looked into'
            return told._replace(phase='input', trouble=trouble)
        if graphs.is_variable_read(op) or op.type in graphs.VARIABLES:
            variable = graphs.variable_behind(op.inputs[0] if op.inputs else tensor)
            name = variable.name if variable is not None else op.name
            return told._replace(
                phase='variable', trouble='%s was not finite already before this step' % name
            )
        if op.type == 'Const':
            return told._replace(phase='constant', trouble='the graph itself holds it')
        told = told._replace(inputs=tuple(self._input(t) for t in given))
        inside = self._inside(op)
        if inside:
            return told._replace(trouble=inside)
        forward = self._forward_type(told.forward_op)
        dtype = tensor.dtype.base_dtype.name
        trouble = causes.explain(causes.Culprit(step.type_of(op), forward, inputs, output, dtype))
        return told._replace(trouble=trouble + self._large_weights(trouble))

    def _tell(self, tensor: tf.Tensor, spots: Optional[Spots] = None) -> Diagnosis:
        step, op = self._step, tensor.op
        origin = step.origins(op.name)
        name = step.name_of(tensor)
        return Diagnosis(
            phase=self._phases.get(op, 'forward'),
            trouble='',
            op=name.rpartition(':')[0],
            op_type=step.type_of(op),
            tensor=name,
            line=origin.line,
            forward_op=origin.forward,
            output=self._ranges.get(key(tensor)),
            spots=spots,
        )

    def _input(self, tensor) -> Input:
        return Input(self._step.name_of(tensor), self._ranges.get(key(tensor)))

    def _forward_type(self, name: Optional[str]) -> str:
        if name is None:
            return ''
        try:
            return self._step.type_of(self._step.graph.get_operation_by_name(name))
        except KeyError:
            return ''

    def _inside(self, op) -> str:
        """The sentence about a loop or a function: it is at fault, but where inside?"""
        loop = self._step.flow.loop_left_by(op)
        writes = graphs.Writes(self._step.graph)
        bodies = writes.calls(op)
        if not loop and not bodies:
            return ''
        where = 'the loop %s' % loop if loop else 'a function of %s' % self._step.type_of(op)
        found = self._risky_in_loop(loop) if loop else _risky_in(writes, bodies)
        may = '; what may do it there: ' + ', '.join(found[:5]) if found else ''
        return 'somewhere in %s, which cannot be looked into%s' % (where, may)

    def _risky_in_loop(self, loop: str) -> List[str]:
        found = []
        for op in self._step.ops:
            if op.type in causes.RISKY and self._step.flow.is_in_loop(op):
                origin = self._step.origins(op.name)
                line = ' at %s:%d' % origin.line[:2] if origin.line is not None else ''
                found.append('%s %s%s' % (op.type, op.name, line))
        return found

    def _largest_weight(self) -> Tuple[float, str]:
        found = (0.0, '')
        for op in self._step.ops:
            if graphs.is_variable_read(op) and (op, 0) in self._ranges:
                variable = graphs.variable_behind(op.inputs[0] if op.inputs else op.outputs[0])
                if variable is not None:
                    found = max(found, (self._ranges[op, 0].largest, variable.name))
        return found

    def _large_weights(self, trouble: str) -> str:
        largest, name = self._largest_weight()
        if not trouble.startswith('overflow') or largest < _LARGE_WEIGHT:
            return ''
        return (
            '. The weights have grown to %.3g (%s): the learning rate is so large that the '
            'training runs away' % (largest, name)
        )

    def _square(self, name: str) -> Diagnosis:
        def squared(t) -> float:
            found = self._ranges.get(key(t))
            # In the dtype's own terms: 1e20 is much for float32, and 1e3 for float16.
            return 0.0 if found is None else found.largest / _root_of_largest(found.dtype)

        floats = [t for t in self._step.checked if squared(t) > 1]
        trouble = 'the %s is finite, but its square is not, and the optimizer squares it' % name
        if not floats:
            return Diagnosis('update', trouble)
        first = min(floats, key=lambda t: self._order.get(t.op, 0))
        while first.op.type in _SAME_NUMBERS and not self._step.is_fed(first):
            first = first.op.inputs[0]
        return self._tell(first)._replace(trouble=trouble + self._large_weights('overflow'))

    def _limit(self, name: str) -> Diagnosis:
        step = self._step
        limits = [v for t, v in step.feed.items() if key(t) == key(step.gate.limit)]
        limit = ' (%.6g)' % float(limits[0]) if limits else ''
        trouble = 'the loss is above max_loss%s, and everything is finite' % limit
        told = self._tell(step.gate.loss)
        return told._replace(trouble=trouble + self._large_weights('overflow'))

    def _update(self, name: str) -> Diagnosis:
        """Everything that went into the update was finite, and what came out is not."""
        writes = graphs.Writes(self._step.graph)
        kernels = [
            op
            for op in self._step.ours
            if any(v.name == name for v in writes.variables(op))
            and (graphs.values_of(op) or graphs.is_apply(op))
        ]
        trouble = '%s overflows when it is updated: the learning rate is too large' % name
        # Those that undo an update are ours alone and take a copy of the variable.
        kernels = [op for op in kernels if _original_name(op.name) != op.name]
        if not kernels:
            return Diagnosis('update', trouble)
        kernel = next((op for op in kernels if graphs.is_apply(op)), kernels[0])
        inputs = []
        for value in graphs.values_of(kernel):
            found = self._ranges.get(key(value.tensor))
            inputs.append(Input('%s (%s)' % (value.tensor.name, value.role), found))
        original = _original_name(kernel.name)
        origin = self._step.origins(original)
        return Diagnosis(
            phase='update',
            trouble=trouble,
            op=original,
            op_type=kernel.type,
            line=origin.line,
            inputs=tuple(inputs),
        )

    def _not_seen(self, found: Diagnosis) -> List[str]:
        step = self._step
        sentences = []
        if step.missing:
            names = ', '.join(step.missing[:5])
            sentences.append('not kept, for it was drawn inside a loop: %s' % names)
        blind = [op for op in step.ops if step.is_blind(op) and op.name not in step.missing]
        if blind:
            sentences.append('%d ops that need it could not be run again' % len(blind))
        return sentences

    def _rows(self) -> List[Row]:
        step = self._step
        rows = []
        for tensor in step.feed:
            if key(tensor) in self._ranges:
                rows.append(self._row(tensor, 'input'))
        for op in step.ops:
            if op.type in _SAME_NUMBERS or op in self._fixed:
                continue
            for tensor in op.outputs:
                if key(tensor) in self._ranges and not step.is_fed(tensor):
                    rows.append(self._row(tensor, self._phases[op]))
        return rows

    def _row(self, tensor, phase: str) -> Row:
        name = self._step.name_of(tensor)
        op = name.rpartition(':')[0]
        return Row(op, self._step.type_of(tensor.op), name, phase, self._ranges[key(tensor)])


def _bad_data(found: Range, spots: Spots) -> str:
    what = ' and '.join('%d %s' % (n, w) for n, w in ((found.nan, 'NaN'), (found.inf, 'Inf')) if n)
    size = int(np.prod(found.shape, dtype=np.int64))
    rows = ''
    if spots.rows:
        rows = ', in row%s %s' % ('s' if len(spots.rows) > 1 else '', _list(spots.rows))
    return 'bad data: %s among %d values%s' % (what, size, rows)


def _list(rows: Sequence[int], most: int = 10) -> str:
    shown = ', '.join(str(row) for row in rows[:most])
    return shown + (' and %d more' % (len(rows) - most) if len(rows) > most else '')


def _where(spots: Spots) -> str:
    shown = ', '.join('%s = %s' % (list(place), value) for place, value in spots.positions[:3])
    more = ' and %d more' % (spots.count - 3) if spots.count > 3 else ''
    return 'at %s%s' % (shown, more)


def _root_of_largest(dtype: str) -> float:
    return {'float16': 255.9, 'float64': 1.34e154, 'complex128': 1.34e154}.get(dtype, 1.84e19)


def _original_name(name: str) -> str:
    """The name of the op that a gate's twin was made from: slimguard/gate/NAME."""
    parts = name.split('/', 2)
    return parts[2] if len(parts) == 3 else name


def _risky_in(writes: graphs.Writes, bodies: Sequence[str]) -> List[str]:
    found = []
    seen = set()
    waiting = list(bodies)
    while waiting:
        name = waiting.pop()
        function = writes.function(name)
        if name in seen or function is None:
            continue
        seen.add(name)
        for node in function.node_def:
            if node.op in causes.RISKY:
                found.append('%s %s' % (node.op, node.name))
            waiting.extend(writes.called_by(node))
    return found
