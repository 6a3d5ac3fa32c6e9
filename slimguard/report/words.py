"""Words and numbers that the page and its charts share."""

import math
from typing import Any, Optional

NO_SUMMARY = (
    'No scalar in the event files here looks like a loss. Add tf.compat.v1.summary.scalar('
    "'total_loss', total_loss) to the graph, and the next report shows all of the training. "
)
OF_LAST_STEPS = 'This is the loss of the last steps that were kept before an incident. '
TOO_FEW_POINTS = 'There are too few points for a curve.'
NO_CHARTS = (
    'The page has no charts and no samples: matplotlib draws them, and it cannot be imported (%s). '
    'Install it with: pip install matplotlib'
)


def begun(said: str) -> str:
    """Words as the beginning of a sentence."""
    return said[:1].upper() + said[1:]


def name_of(kind: str) -> str:
    """The name of an action in a legend; `kind` is one of `ACTIONS`."""
    return 'on_nan_loss' if kind == 'other' else kind


def number(value: Optional[float]) -> str:
    """A loss in words; '' if it is unknown."""
    if value is None:
        return ''
    if math.isfinite(value):
        return '%.6g' % value
    return 'NaN' if math.isnan(value) else 'Inf' if value > 0 else '\N{MINUS SIGN}Inf'


def norm_of(incident: Any) -> str:
    """The gradient norm of an incident, and its multiple of the median; '' if it is unknown."""
    if incident.gradient_norm is None:
        return ''
    said, ratio = number(incident.gradient_norm), incident.gradient_norm_ratio
    if ratio is None or not math.isfinite(ratio):
        return said
    return '%s, %s times the median of the last good steps' % (said, multiple(ratio))


def multiple(ratio: float) -> str:
    """A multiple in the digits of the messages: 0.5, 12, 342.1, 2.4e+06."""
    return '%.4g' % ratio


def variables(name: str, others: int, most: int = 120) -> str:
    """The name of a variable, and how many more there are; a long name keeps its end."""
    more = ' and %d more' % others if others else ''
    room = most - len(more)
    return ('\N{HORIZONTAL ELLIPSIS}' + name[1 - room :] if len(name) > room else name) + more
