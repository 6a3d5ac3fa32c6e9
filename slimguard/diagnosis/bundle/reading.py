"""Lists the bundles of a training, and reads them.

Anything that is missing, damaged or too large in a bundle raises `BundleError`.
"""

import contextlib
import json
import math
import os
import re
import zipfile
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard.diagnosis.bundle import arrays
from slimguard.diagnosis.exported_step import ExportedStep
from slimguard.incidents.incident import Incident
from slimguard.incidents.incident_groups import kind_of
from slimguard.system import files, logdirs

JSON, GRAPH, DRAWN, STATE = logdirs.BUNDLE, 'step.pb', 'drawn.npz', 'state.npz'
# The largest bundle that is written, and the largest file that is read, in bytes.
MOST_BYTES = 8 << 30
VERSION = 2

_NAME = re.compile(r'step-(\d+|unknown)(-\d+)?$')

_NON_FINITE = {'NaN': math.nan, 'Infinity': math.inf, '-Infinity': -math.inf}
_KINDS = {
    'versions': dict,
    'incident': dict,
    'diagnosis': (dict, type(None)),
    'text': str,
    'history': (dict, type(None)),
    'step': dict,
    'dtypes': dict,
}


class BundleError(ValueError):
    """A folder is no bundle, or a damaged one; the message says which file, and what is wrong."""


def folder(logdir: files.Path) -> str:
    """Where the bundles of a training are."""
    return os.path.join(files.as_path(logdir), 'slimguard')


def paths(logdir: files.Path) -> List[str]:
    """The bundles in a log directory, the oldest first, by the times of their incidents.

    A bundle without a time counts as the oldest. File times are not used: copying changes them.
    """
    return paths_in(folder(logdir))


def paths_in(parent: str) -> List[str]:
    """As `paths`, for the folder that holds the bundles."""
    bundles = [os.path.join(parent, name) for name in files.list_dir(parent) if _NAME.match(name)]
    # A symbolic link is left out: old bundles are removed, and the link's target is not ours.
    bundles = [path for path in bundles if not os.path.islink(path) and is_bundle(path)]
    return sorted(bundles, key=_order)


def is_bundle(path: str) -> bool:
    """Whether a folder holds a bundle, whole or damaged; reading it tells which.

    Raises:
      tf.errors.OpError: if a remote file system cannot be asked.
    """
    return files.exists(os.path.join(path, JSON))


def _order(path: str) -> Tuple[float, str]:
    return logdirs.time_of_bundle(path), path


class Bundle(NamedTuple):
    """The contents of a bundle.

    Attributes:
      path: the folder.
      incident: the fields of the `Incident`, a dictionary.
      diagnosis: the fields of the `Diagnosis`, or None if there was none.
      text: the diagnosis in a few lines.
      versions: the versions of TensorFlow, numpy, Python and slimguard that made the bundle.
      values: what the step drew, by Tensor names.
      exported: the step.
      history: the last steps, as `History.to_dict` gives them; None if they are not known.
      variables: called with names of variable ops; reads their values one by one, and yields them
        in dictionaries. Raises `BundleError`.
    """

    path: str
    incident: Dict[str, Any]
    diagnosis: Optional[Dict[str, Any]]
    text: str
    versions: Dict[str, str]
    values: Dict[str, np.ndarray]
    exported: ExportedStep
    history: Optional[Dict[str, Any]]
    variables: Callable[[List[str]], Iterable[Dict[str, np.ndarray]]]


def read(path: files.Path) -> Bundle:
    """Opens a bundle. Reads the drawn arrays now, the variables only when they are needed.

    Args:
      path: the folder, on any file system that `tf.io.gfile` knows.

    Raises:
      BundleError: if there is no bundle, or anything in it is missing, damaged or too large.
    """
    folder = files.as_path(path, 'bundle')
    content = read_json(folder)
    step = content['step']
    values = dict(_load(folder, DRAWN, content['dtypes']))
    with _opened(folder, GRAPH) as file:
        graph_def = tf1.GraphDef.FromString(file.read())
        if not graph_def.node:
            raise ValueError('an empty graph')
    with _archive(folder, STATE) as archive:
        missing = [name for name in step['variables'] if not arrays.has(archive, name)]
        if missing:
            raise ValueError('there is no array %r' % missing[0])

    def variables(names: List[str]) -> Iterator[Dict[str, np.ndarray]]:
        for name, value in _load(folder, STATE, {each: step['variables'][each] for each in names}):
            yield {name: value}

    names = ('incident', 'diagnosis', 'text', 'versions', 'history')
    parts = {name: content[name] for name in names}
    exported = ExportedStep(graph_def, step)
    return Bundle(path=folder, values=values, exported=exported, variables=variables, **parts)


def read_json(path: files.Path) -> Dict[str, Any]:
    """The contents of a bundle's incident.json; checks its version and its main fields.

    Raises:
      BundleError: if there is none or it is damaged.
    """
    folder = files.as_path(path, 'bundle')
    with _opened(folder, JSON) as file:
        content = json.loads(file.read().decode('utf-8'))
        if not isinstance(content, dict) or content.get('version') != VERSION:
            raise ValueError('it is not of version %d, which this slimguard reads' % VERSION)
        _require_kinds(content, _KINDS)
        _require_kinds(content['step'], {'sources': dict, 'variables': dict})
        if not content['dtypes'].keys() <= content['step']['sources'].keys():
            raise ValueError('it names arrays that the step does not draw')
        for name in ('incident', 'diagnosis', 'history'):
            content[name] = _numbers(content[name])
    return content


def kind_in(path: str) -> str:
    """The kind of a bundle's incident; '' if it cannot be read."""
    try:
        content = read_json(path)
        return kind_of(Incident.from_dict(dict(content['incident'], diagnosis=content['text'])))
    except ValueError:
        return ''


def _numbers(thing: Any) -> Any:
    """`thing` with floats in place of the strings for NaN and Inf."""
    if isinstance(thing, dict):
        return {name: _numbers(value) for name, value in thing.items()}
    if isinstance(thing, list):
        return [_numbers(value) for value in thing]
    return _NON_FINITE.get(thing, thing) if isinstance(thing, str) else thing


def _require_kinds(content: Dict[str, Any], kinds: Dict[str, Any]) -> None:
    for name, kind in kinds.items():
        if not isinstance(content.get(name), kind):
            raise ValueError('no %r of the right kind' % name)


def _load(folder: str, name: str, dtypes: Dict[str, str]) -> Iterator[Tuple[str, np.ndarray]]:
    """Reads arrays out of an .npz, one by one."""
    if dtypes:  # zipfile seeks before the start of an empty archive; a GFile cannot
        with _archive(folder, name) as archive:
            for each, dtype in dtypes.items():
                yield each, arrays.load(archive, each, dtype)


@contextlib.contextmanager
def _archive(folder: str, name: str):
    with _opened(folder, name) as file:
        with zipfile.ZipFile(file) as archive:
            yield archive


@contextlib.contextmanager
def _opened(folder: str, name: str) -> Iterator[IO[bytes]]:
    """Opens a file; any error while it is read becomes a `BundleError`.

    Libraries raise all kinds of errors for garbage: zlib.error, struct.error, UnicodeDecodeError,
    MemoryError, protobuf's own.
    """
    try:
        with files.open_to_read(os.path.join(folder, name)) as file:
            if files.size_of(file) > MOST_BYTES:
                size = files.megabytes(files.size_of(file))
                raise ValueError('it has %s, more than %s' % (size, files.megabytes(MOST_BYTES)))
            yield file
    except BundleError:
        raise
    except Exception as error:
        raise BundleError('%s cannot be read: %s' % (name, _why(error))) from None


def _why(error: Exception) -> str:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return 'there is no such file'
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    what = str(getattr(error, 'message', error))[:500]
    return what if type(error) is ValueError else '%s: %s' % (type(error).__name__, what)
