"""Words and numbers that the page and the picture share."""

import math
import re
from typing import Optional, Sequence

from slimguard.report.bundle_view import BundleView
from slimguard.report.incident_view import IncidentView
from slimguard.report.layer_ranges import Layer
from slimguard.system.texts import cut

_ADD = "Add tf.compat.v1.summary.scalar('total_loss', total_loss) to the graph, and "
NO_CURVE = (
    'No loss curve: no scalar in the event files here looks like a loss. %sthe next report has one.'
    % _ADD
)
NO_SUMMARY = (
    'Only the last steps before incidents are known: no scalar in the event files here looks like '
    'a loss. %sthe next report has all of the curve.' % _ADD
)
BESIDE, ALONE = (
    'each of the last steps before an incident',
    'loss of the last steps before incidents',
)
BEGINS = 'non-finite from here on'  # above the layer that `begins_at` finds


def name_of(kind: str) -> str:
    """An action as a legend has it: one of `ACTIONS`."""
    return 'on_nan_loss' if kind == 'other' else kind


def action_of(incident: IncidentView) -> str:
    """What was done, as the record says it."""
    return incident.action or 'not said'


def norm_of(incident: IncidentView) -> str:
    """The gradient norm of an incident and how far it is from usual; '' if nobody knows it."""
    if incident.gradient_norm is None:
        return ''
    said = number(incident.gradient_norm)
    ratio = incident.gradient_norm_ratio
    if ratio is None or not math.isfinite(ratio):
        return said
    return '%s, %s times the median of the last good steps' % (said, multiple(ratio))


def sentence(bundle: BundleView) -> str:
    """What made a step bad, as a sentence."""
    if not bundle.phase:
        return bundle.incident.reason or 'There is no diagnosis.'
    return '%s: %s.' % (bundle.phase, bundle.trouble)


def cannot_be_shown(bundle: BundleView, error: Exception) -> str:
    """What is said in place of a bundle that could be read, and not drawn."""
    return cut('%s cannot be shown: %s: %s' % (bundle.name, type(error).__name__, error), 1000)


def begins(layers: Sequence[Layer]) -> str:
    """What is said above the layer that `begins_at` finds."""
    is_finite = all(layer.is_finite for layer in layers)
    return 'out of bounds here' if is_finite else BEGINS


def begins_at(layers: Sequence[Layer]) -> Optional[int]:
    """Where values stop being finite: the layer at fault, or else the first that is not finite."""
    for place, layer in enumerate(layers):
        if layer.begins:
            return place
    return next((place for place, layer in enumerate(layers) if not layer.is_finite), None)


def range_of(layer: Layer) -> str:
    """The range of a layer."""
    if not layer.is_finite:
        counts = ((layer.nan, 'NaN'), (layer.inf, 'Inf'))
        return ', '.join('%s %s' % (_count(count), word) for count, word in counts if count)
    if layer.min is None or layer.max is None:
        return 'empty'
    return '%.3g to %.3g' % (layer.min, layer.max)


def number(value: Optional[float]) -> str:
    """A loss; '' if nobody knows it."""
    if value is None:
        return ''
    if math.isfinite(value):
        return '%.6g' % value
    if math.isnan(value):
        return 'NaN'
    return 'Inf' if value > 0 else '\N{MINUS SIGN}Inf'


def multiple(ratio: float) -> str:
    """How many times, in two digits: 0.5, 12, 340, 2.4e6."""
    said = '%.2g' % ratio
    return '%.0f' % float(said) if 10 <= ratio < 1e4 else re.sub(r'e\+0*', 'e', said)


def percent(fraction: float) -> str:
    """A part of a width, for an attribute."""
    return '%.2f%%' % (100 * fraction)


def px(value: float) -> str:
    """A number of pixels, for an attribute."""
    return '%.1f' % value


def _count(count: int) -> str:
    for size, letter in ((10**9, 'G'), (10**6, 'M')):
        if count >= size:
            return '%.3g%s' % (count / size, letter)
    return '{:,}'.format(count).replace(',', '\N{NARROW NO-BREAK SPACE}')
