"""One bundle as the report shows it: what made the step bad, its ranges and its samples, in words.

A bundle was written by a run, or by somebody who says so. One that is not as it should be becomes
a sentence; nothing of it is run.
"""

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from slimguard.diagnosis import bundle
from slimguard.diagnosis.ranges import Range
from slimguard.report import incident_view, last_steps, layer_ranges, samples
from slimguard.report.incident_view import IncidentView
from slimguard.report.last_steps import LastSteps
from slimguard.report.layer_ranges import Layer
from slimguard.report.samples import Sheet
from slimguard.system.texts import cut

_MOST_FACTS = 20
_PHASES = {
    'input': 'In the input',
    'forward': 'In the forward pass',
    'backward': 'In the backward pass',
    'update': 'In the update',
    'variable': 'In a variable',
    'constant': 'A constant is bad',
    'unknown': 'Not found',
}


class BundleView(NamedTuple):
    """What a bundle says.

    Attributes:
      name: of its folder.
      incident: the incident.
      phase: where it began, in words; '' if there is no diagnosis.
      trouble: what happened.
      where: the tensor, its op's type, and the forward op of a gradient.
      line, code: the user's line: file, number and function; and its text.
      output: the range of the tensor.
      inputs: names and ranges.
      positions: where values are not finite, and those values.
      not_examined: what the diagnosis could not examine, and why; or what differs in it.
      layers: the ranges along the step.
      sheets: the samples of the batch.
      versions: of what it was made with.
      steps: the last ones before it; None if they are not known.
    """

    name: str
    incident: IncidentView
    phase: str
    trouble: str
    where: str
    line: str
    code: str
    output: str
    inputs: List[Tuple[str, str]]
    positions: str
    not_examined: List[str]
    layers: List[Layer]
    sheets: List[Sheet]
    versions: str
    steps: Optional[LastSteps] = None


class UnreadableBundle(NamedTuple):
    """A bundle that cannot be read, and why."""

    name: str
    why: str


AnyBundle = Union[BundleView, UnreadableBundle]


def view_of(path: str, room: int) -> AnyBundle:
    """What the bundle in the folder `path` says; `room` is for its samples, in bytes."""
    name = os.path.basename(path)
    try:
        return _view(name, bundle.read(path), room)
    except (bundle.BundleError, OSError) as error:
        return UnreadableBundle(name, cut(error, 1000))
    except Exception as error:  # whatever it is, it must not cost the other bundles
        said = 'incident.json is damaged: %s: %s' % (type(error).__name__, error)
        return UnreadableBundle(name, cut(said, 1000))


def _view(name: str, opened: bundle.Bundle, room: int) -> BundleView:
    diagnosis = opened.diagnosis or {}
    view = BundleView(
        name=name,
        incident=incident_view.view_of(0, opened.incident),
        phase='',
        trouble='',
        where='',
        line='',
        code='',
        output='',
        inputs=[],
        positions='',
        not_examined=[],
        layers=[],
        sheets=_sheets(opened, diagnosis, room),
        steps=last_steps.last_steps_of(opened.history),
        versions=cut(', '.join('%s %s' % pair for pair in sorted(opened.versions.items())), 600),
    )
    return view._replace(**_of_diagnosis(diagnosis)) if diagnosis else view


def _of_diagnosis(said: Dict[str, Any]) -> Dict[str, Any]:
    """The fields of a `BundleView` that a diagnosis fills."""
    line = said.get('line')
    phase = said.get('phase') or 'unknown'
    return {
        'phase': cut(_PHASES.get(phase, phase), 60),
        'trouble': cut(said['trouble'], 1000),
        'where': cut(_where(said), 600),
        'line': cut('%(file)s:%(number)s, in %(function)s' % line, 600) if line else '',
        'code': cut(line['text'], 1000) if line else '',
        'output': '' if said['output'] is None else _range(said['output']),
        'inputs': [_input(given) for given in said['inputs'][:_MOST_FACTS]],
        'positions': cut(_positions(said['positions']), 1000),
        'not_examined': [cut(why, 600) for why in said['not_seen'][:_MOST_FACTS]],
        'layers': layer_ranges.layers_of(said['ranges'], said['tensor']),
    }


def _input(given: Dict[str, Any]) -> Tuple[str, str]:
    return cut(given['name'], 400), '' if given['range'] is None else _range(given['range'])


def _where(said: Dict[str, Any]) -> str:
    if said['op'] is None:
        return ''
    of = ', gradient of %s' % said['forward_op'] if said['forward_op'] else ''
    return '%s (%s%s)' % (said['tensor'] or said['op'], said['op_type'], of)


def _range(said: Dict[str, Any]) -> str:
    shape = tuple(int(size) for size in said['shape'])
    least, largest = layer_ranges.ends_of(said)
    return cut(Range(said['dtype'], shape, least, largest, said['nan'], said['inf']), 400)


def _positions(positions: List[Any]) -> str:
    shown = ['%s = %g' % (list(place), layer_ranges.float_of(v)) for place, v in positions[:6]]
    more = ', \N{HORIZONTAL ELLIPSIS}' if len(positions) > 6 else ''
    return ', '.join(shown) + more


# The samples.


def _sheets(opened: bundle.Bundle, diagnosis: Dict[str, Any], room: int) -> List[Sheet]:
    suspects, rows = _suspects(diagnosis)
    return samples.sheets(_drawn_by_the_user(opened), suspects, rows, room=room)


def _drawn_by_the_user(opened: bundle.Bundle) -> Dict[str, np.ndarray]:
    """The values that the step took in, without random numbers and what is ours."""
    sources = opened.exported.names['sources']
    return {
        name: value
        for name, value in opened.values.items()
        if not name.startswith('slimguard/') and 'Random' not in sources[name][1]
    }


def _suspects(said: Dict[str, Any]) -> Tuple[List[int], int]:
    """The rows of the batch that made a tensor of the forward pass bad, and how many there are.

    A tensor further on may have another first dimension than the batch: the caller compares.
    """
    if not said or said['phase'] != 'forward' or said['output'] is None:
        return [], 0
    if str(said['op_type']).startswith('FusedBatchNorm'):
        return [], 0  # half of what it puts out is by channel
    shape = said['output']['shape']
    rows = [row for row in said['rows'] if isinstance(row, int)]
    if not shape or not isinstance(shape[0], int):
        return [], 0
    # If all of them are bad, that says nothing about any.
    return (rows, shape[0]) if len(rows) < shape[0] else ([], 0)
