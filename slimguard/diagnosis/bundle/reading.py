"""Reads a bundle, and believes nothing that it says.

Whatever is not as a writer makes it is a `BundleError`. How much memory is taken follows from how
large the files are, and not from what they say; no list, string or number of incident.json is
larger than it has use for.
"""

import contextlib
import json
import math
import os
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard.diagnosis.bundle.arrays import read_arrays
from slimguard.diagnosis.bundle.files import (
    ARRAYS,
    GRAPH,
    INDEX,
    JSON,
    BundleError,
    Files,
    brief,
    damaged,
)
from slimguard.diagnosis.bundle.index import MOST_DIMENSIONS
from slimguard.diagnosis.bundle.state import State
from slimguard.diagnosis.rerun import ExportedStep
from slimguard.system import files

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


class Bundle(NamedTuple):
    """What is in a bundle.

    Attributes:
      path: the folder.
      incident: the fields of the `Incident`, a dictionary.
      diagnosis: `Diagnosis.to_dict()`, or None if there was none.
      text: the diagnosis in a few lines.
      versions: of TensorFlow, numpy, Python and slimguard, where it was made.
      values: what the step drew, by Tensor names.
      exported: the step.
      variables: called with names of variable ops; yields dictionaries with their values. Of a
        remote bundle they are copied to this machine at the first call; the copy goes when nobody
        holds this any more, or the process ends.
    """

    path: str
    incident: Dict[str, Any]
    diagnosis: Optional[Dict[str, Any]]
    text: str
    versions: Dict[str, str]
    values: Dict[str, np.ndarray]
    exported: ExportedStep
    variables: Callable[[List[str]], Iterable[Dict[str, np.ndarray]]]


def read(path: files.Path) -> Bundle:
    """Opens a bundle. The arrays are read; the variables are read when they are asked for.

    Args:
      path: the folder, on any file system that `tf.io.gfile` knows.

    Raises:
      BundleError: if anything in it is missing or damaged, or leads out of the folder.
    """
    opened = Files(files.as_path(path, 'bundle'))
    try:
        return _read(opened)
    except BaseException:
        opened.close()
        raise


def _read(opened: Files) -> Bundle:
    with _blaming(JSON):
        said = _read_json(opened)
        _check_step(said['step'])
    with _blaming(ARRAYS):
        values = read_arrays(opened, said['arrays'])
    with _blaming(JSON):
        _require(set(values) <= set(said['step']['sources']), 'arrays: not among step.sources')
    with _blaming(GRAPH):
        exported = ExportedStep(_read_graph(opened), said['step'])
    with _blaming(INDEX):
        variables = State(opened, said['step']['variables'])
    return Bundle(
        opened.path,
        said['incident'],
        said['diagnosis'],
        said['text'],
        said['versions'],
        values,
        exported,
        variables,
    )


def read_json(path: files.Path) -> Dict[str, Any]:
    """What incident.json of a bundle says, checked as far as its outline goes.

    Raises:
      BundleError: if there is none or it is damaged.
    """
    opened = Files(files.as_path(path, 'bundle'))
    try:
        with _blaming(JSON):
            return _read_json(opened)
    finally:
        opened.close()


@contextlib.contextmanager
def _blaming(name: str):
    """Makes one kind of error of all that a damaged or hostile file can cause.

    Libraries raise what they like when they are handed garbage: zlib.error, struct.error,
    UnicodeDecodeError, MemoryError, protobuf's own.
    """
    try:
        yield
    except BundleError:
        raise
    except Exception as error:
        raise damaged(name, '%s: %s' % (type(error).__name__, error)) from None


def number(value: Any) -> Any:
    """A number of incident.json as a float: there, NaN and Inf are strings. All else as it is."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


# incident.json.

_KINDS = {
    'version': int,
    'versions': dict,
    'incident': dict,
    'diagnosis': (dict, type(None)),
    'text': str,
    'step': dict,
    'arrays': list,
}


def _read_json(opened: Files) -> Dict[str, Any]:
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
    return said


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
    _require(len(said['arrays']) <= _MOST_ARRAYS, 'number of arrays: %d' % len(said['arrays']))
    for name, most in _MOST_IN_DIAGNOSIS.items():
        length = _length((said['diagnosis'] or {}).get(name))
        _require(length <= most, 'diagnosis.%s: %d entries, more than %d' % (name, length, most))
    for row in _ranges(said['diagnosis'] or {}):
        dimensions = _length(row.get('shape') if isinstance(row, dict) else None)
        _require(dimensions <= MOST_DIMENSIONS, 'a shape of %d dimensions' % dimensions)


def _ranges(diagnosis: Dict[str, Any]) -> Iterable[Any]:
    yield diagnosis.get('output')
    for name in ('inputs', 'ranges'):
        for row in diagnosis.get(name) or ():
            yield row.get('range') if isinstance(row, dict) else None


def _length(thing) -> int:
    return len(thing) if isinstance(thing, (list, str, dict)) else 0


_STRINGS = ('made_with', 'train_op', 'written', 'bad', 'watched')


def _check_step(names: Dict[str, Any]) -> None:
    for name in _STRINGS:
        _require(isinstance(names[name], str), 'step.' + name)
    for name in ('loss', 'limit'):
        _require(names[name] is None or isinstance(names[name], str), 'step.' + name)
    for name in ('labels', 'missing'):
        _require(isinstance(names[name], list), 'step.' + name)
    _require(all(_are_strings(label, 2) for label in names['labels']), 'step.labels')
    _require(all(isinstance(name, str) for name in names['missing']), 'step.missing')
    for said, length in (('sources', 2), ('variables', 3)):
        _require(isinstance(names[said], dict), 'step.' + said)
        rows = names[said].values()
        _require(all(_are_strings(row, length) for row in rows), 'step.' + said)
    _check_origins(names['origins'])


def _check_origins(origins: Dict[str, Any]) -> None:
    lines, ops = origins['lines'], origins['ops']
    _require(isinstance(lines, list), 'step.origins.lines')
    for line in lines:
        _require(isinstance(line, list) and len(line) == 4, 'step.origins.lines')
        _require(isinstance(line[1], int), 'step.origins.lines')
        _require(all(isinstance(line[i], str) for i in (0, 2, 3)), 'step.origins.lines')
    for origin, forward in ops.values():
        in_range = origin is None or (isinstance(origin, int) and 0 <= origin < len(lines))
        _require(in_range, 'step.origins.ops')
        _require(forward is None or isinstance(forward, str), 'step.origins.ops')


def _are_strings(row, length: int) -> bool:
    return isinstance(row, list) and len(row) == length and all(isinstance(x, str) for x in row)


def _require(good: bool, what: str) -> None:
    if not good:
        raise damaged(JSON, 'unexpected ' + what)


# step.pb.


def _read_graph(opened: Files) -> tf1.GraphDef:
    graph_def = tf1.GraphDef()
    graph_def.ParseFromString(opened.read(GRAPH))
    if not graph_def.node:
        raise damaged(GRAPH, 'an empty graph')
    return graph_def
