"""Reads incident.json of a bundle, and takes no more of it than a writer writes.

No list, string or number of it is larger than it has use for.
"""

import json
import math
import os
from typing import Any, Dict, Iterable, Optional

from slimguard.diagnosis.bundle.files import JSON, BundleError, Files, brief, damaged
from slimguard.diagnosis.bundle.index import MOST_DIMENSIONS
from slimguard.system.numbers import is_whole

VERSION = 1
_NON_FINITE = {'NaN': math.nan, 'Infinity': math.inf, '-Infinity': -math.inf}

# What incident.json may hold. A step of 100,000 ops stays far below.
MOST_ROWS = 100000  # of the table of ranges; a writer cuts it
_MOST_CONTAINERS = 1500000  # lists and dictionaries
_MOST_LETTERS = 1 << 20  # of a string
_MOST_DIGITS = 40  # of a number
_DEPTH = 12
_MOST_ARRAYS = 50000
_MOST_IN_DIAGNOSIS = {
    'ranges': MOST_ROWS,
    'inputs': 10000,
    'rows': 1 << 20,
    'positions': 1000,
    'not_seen': 1000,
}


def number(value: Any) -> Any:
    """A number of incident.json as a float: there, NaN and Inf are strings. All else as it is."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


# What a history has an entry for each step in.
_COLUMNS = 'step good loss learning_rate gradient_norm gradient_norms'.split()

_KINDS = {
    'version': int,
    'versions': dict,
    'incident': dict,
    'diagnosis': (dict, type(None)),
    'text': str,
    'step': dict,
    'arrays': list,
}


def parse_incident(opened: Files) -> Dict[str, Any]:
    """What incident.json says, checked as far as its outline goes; not its step."""
    said = parse(opened.read(JSON))
    for name, kind in _KINDS.items():
        if not isinstance(said, dict) or not isinstance(said.get(name), kind):
            raise damaged(JSON, 'no %r of the right kind' % name)
    if said['version'] != VERSION:
        raise BundleError(
            '%s is of version %s, and this slimguard reads version %d'
            % (os.path.join(opened.path, JSON), brief(said['version']), VERSION)
        )
    check_sizes(said)
    said['history'] = _read_history(said.get('history'))
    return said


def _read_history(history: Any) -> Optional[Dict[str, Any]]:
    """What `History.to_dict` gave; None if there is none, as in bundles of earlier versions."""
    if history is None:
        return None
    require(isinstance(history, dict), 'history')
    columns = [history.get(name) for name in _COLUMNS]
    require(all(isinstance(column, list) for column in columns), 'history')
    require(len({len(column) for column in columns}) == 1, 'lengths in history')
    gradients = history.get('gradients')
    require(isinstance(gradients, list), 'history.gradients')
    for names in gradients:
        require(isinstance(names, list) and bool(names), 'history.gradients')
        require(all(isinstance(name, str) for name in names), 'history.gradients')
    for step, *numbers in zip(*(history[name] for name in _COLUMNS if name != 'gradient_norms')):
        require(step is None or _is_int(step), 'history.step')
        require(all(_is_real(each) for each in numbers), 'a number in history')
    for norms in history['gradient_norms']:
        require(isinstance(norms, list) and len(norms) == len(gradients), 'history.gradient_norms')
        require(all(_is_real(norm) for norm in norms), 'history.gradient_norms')
    norms = [[number(norm) for norm in row] for row in history['gradient_norms']]
    flat = {name: [number(each) for each in history[name]] for name in _COLUMNS[:-1]}
    return dict(flat, gradients=gradients, gradient_norms=norms)


def _is_int(value: Any) -> bool:
    return is_whole(value) and abs(value) < 2**63


def _is_real(value: Any) -> bool:
    return value is None or isinstance(number(value), (bool, float)) or _is_int(value)


def parse(content: bytes) -> Any:
    """JSON out of bytes, if it is no deeper or larger than a writer makes it.

    Raises:
      ValueError: otherwise.
    """
    # An empty list takes thirty times the memory of its two brackets.
    containers = content.count(b'[') + content.count(b'{')
    if containers > _MOST_CONTAINERS:
        raise ValueError('%d lists and dictionaries, more than any step needs' % containers)
    said = json.loads(content.decode('utf-8'), parse_int=_int, parse_float=_float)
    _check_all(said)
    return said


def _int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError('a number of %d digits' % len(text))
    return int(text)


def _float(text: str) -> float:
    if len(text) > _MOST_DIGITS:
        raise ValueError('a number of %d digits' % len(text))
    return float(text)


def _check_all(said) -> None:
    """Level by level, and not by recursion, which deep JSON would exhaust."""
    level = [said]
    for _ in range(_DEPTH):
        lower = []
        for thing in level:
            if isinstance(thing, dict):
                lower.extend(thing)
                lower.extend(thing.values())
            elif isinstance(thing, list):
                lower.extend(thing)
            elif isinstance(thing, str) and len(thing) > _MOST_LETTERS:
                raise ValueError('a string of %d letters' % len(thing))
        level = lower
    if level:
        raise ValueError('nested deeper than %d levels' % _DEPTH)


def check_sizes(said: Dict[str, Any]) -> None:
    """Raises ValueError if a list is longer than a reader takes."""
    require(len(said['arrays']) <= _MOST_ARRAYS, 'number of arrays: %d' % len(said['arrays']))
    for name, most in _MOST_IN_DIAGNOSIS.items():
        length = _length((said['diagnosis'] or {}).get(name))
        require(length <= most, 'diagnosis.%s: %d entries, more than %d' % (name, length, most))
    for row in _ranges(said['diagnosis'] or {}):
        dimensions = _length(row.get('shape') if isinstance(row, dict) else None)
        require(dimensions <= MOST_DIMENSIONS, 'a shape of %d dimensions' % dimensions)


def _ranges(diagnosis: Dict[str, Any]) -> Iterable[Any]:
    yield diagnosis.get('output')
    for name in ('inputs', 'ranges'):
        for row in diagnosis.get(name) or ():
            yield row.get('range') if isinstance(row, dict) else None


def _length(thing) -> int:
    return len(thing) if isinstance(thing, (list, str, dict)) else 0


_STRINGS = ('made_with', 'train_op', 'written', 'bad', 'watched')


def check_step(names: Dict[str, Any]) -> None:
    """Raises BundleError unless the names of a step are of the right kinds."""
    for name in _STRINGS:
        require(isinstance(names[name], str), 'step.' + name)
    norm_limit = names.get('norm_limit')  # bundles of earlier versions have none
    known = {'loss': names['loss'], 'limit': names['limit'], 'norm_limit': norm_limit}
    for name, given in known.items():
        require(given is None or isinstance(given, str), 'step.' + name)
    for name in ('labels', 'missing'):
        require(isinstance(names[name], list), 'step.' + name)
    require(all(_are_strings(label, 2) for label in names['labels']), 'step.labels')
    require(all(isinstance(name, str) for name in names['missing']), 'step.missing')
    for said, length in (('sources', 2), ('variables', 3)):
        require(isinstance(names[said], dict), 'step.' + said)
        rows = names[said].values()
        require(all(_are_strings(row, length) for row in rows), 'step.' + said)
    _check_origins(names['origins'])


def _check_origins(origins: Dict[str, Any]) -> None:
    lines, ops = origins['lines'], origins['ops']
    require(isinstance(lines, list), 'step.origins.lines')
    for line in lines:
        require(isinstance(line, list) and len(line) == 4, 'step.origins.lines')
        require(isinstance(line[1], int), 'step.origins.lines')
        require(all(isinstance(line[i], str) for i in (0, 2, 3)), 'step.origins.lines')
    for origin, forward in ops.values():
        in_range = origin is None or (isinstance(origin, int) and 0 <= origin < len(lines))
        require(in_range, 'step.origins.ops')
        require(forward is None or isinstance(forward, str), 'step.origins.ops')


def _are_strings(row, length: int) -> bool:
    return isinstance(row, list) and len(row) == length and all(isinstance(x, str) for x in row)


def require(good: bool, what: str) -> None:
    """Raises BundleError about incident.json if something in it is not good."""
    if not good:
        raise damaged(JSON, 'unexpected ' + what)
