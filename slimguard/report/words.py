"""Words and numbers that the page and the picture share."""

import math
from typing import Optional, Sequence

from slimguard.report.bundle_view import BundleView
from slimguard.report.incident_view import IncidentView
from slimguard.report.layer_ranges import Layer
from slimguard.system.texts import cut

NO_CURVE = (
    'No loss curve: no scalar in the event files here looks like a loss. Add '
    "tf.compat.v1.summary.scalar('total_loss', total_loss) to the graph, and the next report "
    'has one.'
)
BEGINS = 'non-finite from here on'  # above the layer that `begins_at` finds


def name_of(kind: str) -> str:
    """An action as a legend has it: one of `ACTIONS`."""
    return 'on_nan_loss' if kind == 'other' else kind


def action_of(incident: IncidentView) -> str:
    """What was done, as the record says it."""
    return incident.action or 'not said'


def sentence(bundle: BundleView) -> str:
    """What made a step bad, as a sentence."""
    if not bundle.phase:
        return bundle.incident.reason or 'There is no diagnosis.'
    return '%s: %s.' % (bundle.phase, bundle.trouble)


def cannot_be_shown(bundle: BundleView, error: Exception) -> str:
    """What is said in place of a bundle that could be read, and not drawn."""
    return cut('%s cannot be shown: %s: %s' % (bundle.name, type(error).__name__, error), 1000)


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


def _count(count: int) -> str:
    for size, letter in ((10**9, 'G'), (10**6, 'M')):
        if count >= size:
            return '%.3g%s' % (count / size, letter)
    return '{:,}'.format(count).replace(',', '\N{NARROW NO-BREAK SPACE}')
