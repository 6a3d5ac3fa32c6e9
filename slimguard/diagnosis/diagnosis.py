"""`Diagnosis`: what made a step bad, as data and in a few lines."""

from typing import List, NamedTuple, Optional, Tuple

from slimguard.diagnosis.ranges import NonFinite, Range
from slimguard.graph.source_lines import Line
from slimguard.incidents import advice, policies
from slimguard.system.texts import in_one_line


class Phase:
    """Where in a step the bad numbers began."""

    INPUT = 'input'
    FORWARD = 'forward'
    BACKWARD = 'backward'
    UPDATE = 'update'
    VARIABLE = 'variable'  # a weight was not finite before the step
    CONSTANT = 'constant'
    UNKNOWN = 'unknown'


PHASES = {
    Phase.INPUT: 'in the input',
    Phase.FORWARD: 'in the forward pass',
    Phase.BACKWARD: 'in the backward pass',
    Phase.UPDATE: 'in the update',
    Phase.VARIABLE: 'in a variable',
    Phase.CONSTANT: 'in a constant',
    Phase.UNKNOWN: 'not found',
}
# In these phases the step was given bad values, so no explosion made them.
_GIVEN = (Phase.INPUT, Phase.VARIABLE, Phase.CONSTANT)


class Input(NamedTuple):
    """An input of the op at fault.

    Attributes:
      name: the name of the tensor.
      range: its range; None if it is no float tensor, or could not be measured.
      where: the first numbers that the op cannot take, with their indices: '0 at [5, 0]'; '' if
        they are not known.
    """

    name: str
    range: Optional[Range]
    where: str = ''


class Row(NamedTuple):
    """One line of the table of ranges along the step."""

    op: str
    type: str
    tensor: str
    phase: str
    range: Range


class Diagnosis(NamedTuple):
    """What made a step bad.

    Attributes:
      phase: where the bad numbers began, one of `Phase`.
      trouble: what happened, in a sentence without a full stop.
      op, op_type: the op at fault, or the op that drew the bad input. None if unknown.
      tensor: the name of its bad output.
      line: the user's line that made the op; for a gradient op, the line of the forward op.
      forward_op: for a gradient op, the op whose gradient it computes.
      output: the range of the bad output.
      inputs: the inputs of the op.
      drawn: the names of the drawn values that enter the input at fault, or any input if the cause
        names no input; empty after an explosion.
      non_finite: where the output is not finite, or None.
      not_seen: sentences about what could not be examined.
      ranges: the range of each float tensor of the step, in the order of the ops.
      kind: the kind of cause, for policies: `BATCH`, `EXPLOSION`, `COMES_AGAIN` or `STATE`; '' for
        any other cause, and if none was found.
      explosion: the sentence on an earlier explosion that led to the bad step; '' if none.
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
    drawn: Tuple[str, ...] = ()
    non_finite: Optional[NonFinite] = None
    not_seen: Tuple[str, ...] = ()
    ranges: Tuple[Row, ...] = ()
    kind: str = ''
    explosion: str = ''

    @property
    def shows_ruin(self) -> bool:
        """Whether the weights were ruined before: the last steps say so, or their size does."""
        return bool(self.explosion) or advice.LARGE_WEIGHTS in self.trouble

    def after(self, explosion: str) -> 'Diagnosis':
        """Adds `explosion`, the sentence that `explosion_in` returned for the steps before.

        A diagnosis that blames the batch or another given value stays as it is.
        """
        is_other = self.phase in _GIVEN or self.kind not in ('', policies.EXPLOSION)
        if not explosion or is_other:
            return self
        if self.op_type and self.trouble.startswith('overflow'):
            explosion += '; then %s overflowed' % self.op_type
        return self._replace(explosion=explosion)

    @property
    def is_known(self) -> bool:
        return self.phase != Phase.UNKNOWN

    @property
    def bad_rows(self) -> Optional[List[int]]:
        """The bad rows of the input; empty if it has no rows, None if the input is good."""
        if self.phase != Phase.INPUT:
            return None
        return [] if self.non_finite is None else list(self.non_finite.rows)

    @property
    def in_short(self) -> Optional[str]:
        """One line: the trouble, and the op and the user's line if known; None without a cause."""
        if not self.is_known:
            return self.explosion or None
        says_where = self.phase in (Phase.VARIABLE, Phase.CONSTANT)
        op = 'gradient of ' + self.forward_op if self.forward_op else self.op
        line = None if self.line is None else '%s:%d' % (self.line.file, self.line.number)
        parts = [self.explosion, self._trouble() if says_where else self.trouble, op, line]
        if self.explosion.endswith('overflowed'):
            del parts[1]
        return in_one_line('; '.join(part for part in parts if part))

    def _trouble(self) -> str:
        return '%s: %s' % (PHASES[self.phase], self.trouble)

    def _op(self) -> Optional[str]:
        if self.op is None:
            return None
        of = ', gradient of %s' % self.forward_op if self.forward_op else ''
        return '%s (%s%s)' % (self.tensor or self.op, self.op_type, of)

    def __str__(self) -> str:
        op = self._op()
        lines = [self.explosion] if self.explosion else []
        lines.append(self._trouble())
        if op is not None:
            lines.append('  ' + op)
        if self.line is not None:
            lines.append('  %s' % (self.line,))
        for given in self.inputs[:5]:
            if given.range is not None:
                where = ': ' + given.where if given.where else ''
                lines.append('  input %s: %s%s' % (given.name, given.range, where))
        if self.output is not None:
            lines.append('  output: %s' % (self.output,))
        has_places = self.non_finite is not None and any(p for p, _ in self.non_finite.positions)
        if self.non_finite is not None and has_places:  # a scalar has no places
            lines.append('  ' + _where(self.non_finite))
        lines.extend('  ' + sentence for sentence in self.not_seen)
        return '\n'.join(lines)


def _where(non_finite: NonFinite) -> str:
    shown = ', '.join('%s = %s' % (list(place), value) for place, value in non_finite.positions[:3])
    more = ' and %d more' % (non_finite.count - 3) if non_finite.count > 3 else ''
    return 'at %s%s' % (shown, more)
