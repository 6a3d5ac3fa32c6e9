"""The bundle: a bad step in a folder, to be opened elsewhere, weeks later, without the user's code.

    logdir/slimguard/incident-<step>/
      incident.json       what happened, the diagnosis, the ranges along the step, and names
      drawn.npz           what the step drew
      step.pb             the step as a GraphDef
      state.index, ...    a checkpoint of the variables before the step, which any Saver restores

:func:`write` makes one, :func:`read` opens one. Nothing is pickled. :func:`read` believes nothing:
whatever is not as it should be is a `BundleError`, and sizes are checked before memory is taken.
Still, a graph is code: it can read and write files when it is run. Replay only what you trust.
"""

import dataclasses
import io
import json
import math
import os
import re
import shutil
import tempfile
import zipfile
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from slimguard.capture import Capture
from slimguard.diagnose import Diagnosis
from slimguard.step import Plain, export, variables_in_chunks

tf1 = tf.compat.v1

VERSION = 1
_JSON, _ARRAYS, _GRAPH, _STATE = 'incident.json', 'drawn.npz', 'step.pb', 'state'
_FOLDER = re.compile(r'incident-(?:\d+|unknown)(?:-\d+)?$')
_MAX_JSON = 256 << 20
_NON_FINITE = {'NaN': math.nan, 'Infinity': math.inf, '-Infinity': -math.inf}


class BundleError(ValueError):
    """A folder is no bundle, or a damaged one; the message says which file, and what is wrong."""


class Bundle(NamedTuple):
    """What is in a bundle.

    Attributes:
      path: the folder.
      incident: the fields of the `Incident`, a dictionary.
      diagnosis: `Diagnosis.to_dict()`, or None if there was none.
      text: the diagnosis in a few lines.
      versions: of TensorFlow, numpy, Python and slimguard, where it was made.
      values: what the step drew, by Tensor names.
      plain: the step.
      variables: called with names of variable ops; yields dictionaries with their values.
    """

    path: str
    incident: Dict[str, Any]
    diagnosis: Optional[Dict[str, Any]]
    text: str
    versions: Dict[str, str]
    values: Dict[str, np.ndarray]
    plain: Plain
    variables: Callable[[List[str]], Iterable[Dict[str, np.ndarray]]]


# Writing.


def folder(logdir: str) -> str:
    """Where the bundles of a training are."""
    return os.path.join(logdir, 'slimguard')


def paths(logdir: str) -> List[str]:
    """The bundles in a log directory, the oldest first."""
    parent = folder(logdir)
    names = [n for n in _listdir(parent) if _FOLDER.match(n)]
    found = [os.path.join(parent, n) for n in names]
    found = [path for path in found if os.path.isfile(os.path.join(path, _JSON))]
    return sorted(found, key=lambda p: (os.path.getmtime(os.path.join(p, _JSON)), p))


def write(
    logdir: str,
    session,
    capture: Capture,
    incident,
    values: Dict[str, np.ndarray],
    diagnosis: Optional[Diagnosis] = None,
    max_bundles: int = 5,
) -> str:
    """Writes a bundle, and removes the oldest ones beyond `max_bundles`.

    It is written under a temporary name and moved into place.

    Args:
      logdir: the log directory of the training.
      session: the session, with the variables as they were before the bad step.
      capture: the `Capture` of the train op.
      incident: the `Incident`.
      values: what the step drew, as `capture.take` returned it.
      diagnosis: the `Diagnosis`, if there is one.
      max_bundles: how many bundles there may be in `logdir`; at least 1.

    Returns:
      The path of the bundle.

    Raises:
      OSError: if it cannot be written.
      ValueError: if `max_bundles` is not at least 1.
    """
    if max_bundles < 1:
        raise ValueError('max_bundles must be at least 1, not %r' % (max_bundles,))
    parent = folder(logdir)
    os.makedirs(parent, exist_ok=True)
    plain = export(capture)
    making = tempfile.mkdtemp(prefix='.making-', dir=parent)
    try:
        os.chmod(making, 0o777 & ~_umask())
        with open(os.path.join(making, _GRAPH), 'wb') as file:
            file.write(plain.graph_def.SerializeToString())
        _save_state(session, capture, plain.names['variables'], os.path.join(making, _STATE))
        arrays = _save_arrays(values, os.path.join(making, _ARRAYS))
        said = {
            'version': VERSION,
            'versions': _versions(),
            'incident': dataclasses.asdict(incident),
            'diagnosis': None if diagnosis is None else diagnosis.to_dict(),
            'text': '' if diagnosis is None else str(diagnosis),
            'step': plain.names,
            'arrays': arrays,
        }
        with open(os.path.join(making, _JSON), 'w', encoding='utf-8') as file:
            json.dump(_to_json(said), file, allow_nan=False)
        path = _move_into_place(making, parent, incident.step)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    for old in paths(logdir)[:-max_bundles]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def _move_into_place(making: str, parent: str, step: Optional[int]) -> str:
    name = 'incident-%s' % ('unknown' if step is None else step)
    number = 1
    while True:
        path = os.path.join(parent, name if number == 1 else '%s-%d' % (name, number))
        if not os.path.exists(path):
            try:
                os.rename(making, path)
                return path
            except OSError:
                if not os.path.exists(path):
                    raise
        number += 1


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _versions() -> Dict[str, str]:
    import platform

    import slimguard

    return {
        'tensorflow': tf.__version__,
        'numpy': np.__version__,
        'python': platform.python_version(),
        'slimguard': slimguard.__version__,
    }


def _save_state(session, capture: Capture, variables, prefix: str) -> None:
    """Writes a checkpoint part by part, so that it takes no second copy of the model."""
    parts = []
    for number, values in enumerate(variables_in_chunks(session, capture, list(variables))):
        part = '%s-part-%d' % (prefix, number)
        parts.append(part)
        _run_alone(_save_part(part, values, variables))
    if not parts:
        return
    _run_alone(
        lambda: tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=False
        )
    )


def _save_part(part: str, values, variables):
    def build():
        feed = {}
        for name, value in values.items():
            dtype = tf.as_dtype(variables[name][0])
            feed[name] = tf1.placeholder(dtype, np.shape(value))
        save = tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=[variables[name][1] for name in values],
            shape_and_slices=[variables[name][2] for name in values],
            tensors=[feed[name] for name in values],
        )
        return save, {feed[name]: value for name, value in values.items()}

    return build


def _run_alone(build):
    """Builds and runs something in a graph and a session of its own, which takes no GPU."""
    with tf.Graph().as_default(), tf.device('/cpu:0'):
        built = build()
        fetches, feed = built if isinstance(built, tuple) else (built, None)
        with tf1.Session(config=tf1.ConfigProto(device_count={'GPU': 0})) as session:
            return session.run(fetches, feed)


def _save_arrays(values: Dict[str, np.ndarray], path: str) -> List[Dict[str, Any]]:
    """Writes arrays of any dtype as plain numbers; returns what is needed to read them back."""
    arrays, said = {}, []
    for number, (name, value) in enumerate(values.items()):
        value = np.asarray(value)
        key = 'a%d' % number
        entry = {'name': name, 'key': key, 'shape': list(value.shape)}
        if value.dtype.kind in 'OSU':
            texts = [tf.compat.as_bytes(text) for text in value.ravel().tolist()]
            arrays[key] = np.frombuffer(b''.join(texts), np.uint8)
            arrays[key + '_lengths'] = np.array([len(text) for text in texts], np.int64)
            entry['dtype'] = 'string'
        else:
            entry['dtype'] = tf.as_dtype(value.dtype).name
            # What numpy has no name for (bfloat16, qint8) goes as bytes, like all others.
            flat = np.ascontiguousarray(value).reshape(-1)
            arrays[key] = flat.view(np.uint8) if flat.size else np.zeros([0], np.uint8)
        said.append(entry)
    np.savez(path, **arrays)
    return said


def _to_json(thing):
    """JSON has no NaN: there, such a number is one of the strings NaN, Infinity and -Infinity."""
    if isinstance(thing, dict):
        return {str(name): _to_json(value) for name, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_to_json(value) for value in thing]
    if isinstance(thing, float) and not math.isfinite(thing):
        return 'NaN' if math.isnan(thing) else ('Infinity' if thing > 0 else '-Infinity')
    if isinstance(thing, np.generic):
        return _to_json(thing.item())
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    return str(thing)


# Reading.


def read(path: str) -> Bundle:
    """Opens a bundle. The arrays are read; the variables are read when they are asked for.

    Raises:
      BundleError: if anything in it is missing or damaged, or leads out of the folder.
    """
    said = read_json(path)
    try:
        values = _read_arrays(_inside(path, _ARRAYS), said['arrays'])
        plain = Plain(_read_graph(_inside(path, _GRAPH)), said['step'])
        _check_names(said['step'], values)
        variables = _State(path, said['step']['variables'])
        return Bundle(
            path,
            said['incident'],
            said['diagnosis'],
            said['text'],
            said['versions'],
            values,
            plain,
            variables,
        )
    except BundleError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, MemoryError) as error:
        raise _damaged(path, '%s: %s' % (type(error).__name__, error)) from None


def read_json(path: str) -> Dict[str, Any]:
    """What incident.json of a bundle says, checked as far as its outline goes.

    Raises:
      BundleError: if there is none or it is damaged.
    """
    if not os.path.isdir(path):
        raise BundleError('there is no bundle %r; expected a folder with %s' % (path, _JSON))
    file_name = _inside(path, _JSON)
    if os.path.getsize(file_name) > _MAX_JSON:
        raise _damaged(file_name, 'larger than %d bytes' % _MAX_JSON)
    try:
        with open(file_name, encoding='utf-8') as file:
            said = json.load(file)
    except (ValueError, OSError, RecursionError) as error:
        raise _damaged(file_name, error) from None
    kinds = {
        'version': int,
        'versions': dict,
        'incident': dict,
        'diagnosis': (dict, type(None)),
        'text': str,
        'step': dict,
        'arrays': list,
    }
    for name, kind in kinds.items():
        if not isinstance(said, dict) or not isinstance(said.get(name), kind):
            raise _damaged(file_name, 'no %r of the right kind' % name)
    if said['version'] != VERSION:
        raise BundleError(
            '%s is of version %r, and this slimguard reads version %d'
            % (file_name, said['version'], VERSION)
        )
    return said


def number(value) -> Optional[float]:
    """A number of incident.json as a float: there, NaN and Inf are strings."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def _damaged(path: str, why) -> BundleError:
    return BundleError('%s is damaged: %s' % (os.path.basename(path) or path, why))


def _inside(path: str, name: str) -> str:
    """A file of the bundle; a link that leads out of the folder is none."""
    file_name = os.path.join(path, name)
    if not os.path.isfile(file_name):
        raise _damaged(path, 'there is no file %s' % name)
    if os.path.realpath(file_name) != os.path.join(os.path.realpath(path), name):
        raise _damaged(path, '%s leads out of the folder' % name)
    return file_name


def _read_graph(file_name: str) -> tf1.GraphDef:
    graph_def = tf1.GraphDef()
    with open(file_name, 'rb') as file:
        content = file.read()
    try:
        graph_def.ParseFromString(content)
    except Exception as error:  # protobuf's DecodeError has had several homes
        raise _damaged(file_name, error) from None
    if not graph_def.node:
        raise _damaged(file_name, 'an empty graph')
    return graph_def


_STRINGS = ('made_with', 'train_op', 'written', 'bad', 'watched')


def _check_names(names: Dict[str, Any], values) -> None:
    for name in _STRINGS:
        _require(isinstance(names[name], str), 'step.' + name)
    for name in ('loss', 'limit'):
        _require(names[name] is None or isinstance(names[name], str), 'step.' + name)
    _require(all(_are_strings(label, 2) for label in names['labels']), 'step.labels')
    _require(all(isinstance(name, str) for name in names['missing']), 'step.missing')
    for said, length in (('sources', 2), ('variables', 3)):
        rows = names[said].values()
        _require(all(_are_strings(row, length) for row in rows), 'step.' + said)
    _require(set(values) <= set(names['sources']), 'arrays: not among step.sources')
    lines, ops = names['origins']['lines'], names['origins']['ops']
    for line in lines:
        _require(len(line) == 4 and isinstance(line[1], int), 'step.origins.lines')
        _require(all(isinstance(line[i], str) for i in (0, 2, 3)), 'step.origins.lines')
    for origin, forward in ops.values():
        in_range = origin is None or (isinstance(origin, int) and 0 <= origin < len(lines))
        _require(in_range, 'step.origins.ops')
        _require(forward is None or isinstance(forward, str), 'step.origins.ops')


def _are_strings(row, length: int) -> bool:
    return isinstance(row, list) and len(row) == length and all(isinstance(x, str) for x in row)


def _require(good: bool, what: str) -> None:
    if not good:
        raise ValueError('unexpected ' + what)


def _read_arrays(file_name: str, said: List[Dict[str, Any]]) -> Dict[str, np.ndarray]:
    contents = _Npz(file_name)
    values = {}
    for entry in said:
        name, dtype, shape = entry['name'], entry['dtype'], entry['shape']
        if not isinstance(name, str) or not all(_is_size(size) for size in shape):
            raise _damaged(file_name, 'unexpected name or shape %r, %r' % (name, shape))
        flat = contents[entry['key']]
        count = _product(shape)
        if dtype == 'string':
            flat = _read_texts(file_name, flat, contents[entry['key'] + '_lengths'])
        else:
            flat = flat.view(tf.as_dtype(dtype).as_numpy_dtype)
        if flat.size != count:
            raise _damaged(file_name, '%r has %d values, not %s' % (name, flat.size, shape))
        values[name] = flat.reshape(shape)
    return values


def _product(shape) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _is_size(size) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0


def _read_texts(file_name: str, content: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    lengths = lengths.tolist()
    if any(length < 0 for length in lengths) or sum(lengths) != content.size:
        raise _damaged(file_name, 'strings of wrong lengths')
    whole, start = content.tobytes(), 0
    texts = np.empty([len(lengths)], object)
    for number, length in enumerate(lengths):
        texts[number] = whole[start : start + length]
        start += length
    return texts


class _Npz:
    """The arrays of an .npz that `np.savez` wrote: bytes or int64, and nothing compressed.

    `np.load` would take the memory that a file says it needs before it looks at how long it is.
    Here no member can be larger than the file, since none is compressed.
    """

    def __init__(self, file_name: str):
        self._file_name = file_name
        try:
            with zipfile.ZipFile(file_name) as archive:
                self._read(archive)
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
            if isinstance(error, BundleError):
                raise
            raise _damaged(file_name, error) from None

    def __getitem__(self, key: str) -> np.ndarray:
        if key not in self._arrays:
            raise _damaged(self._file_name, 'no array %r' % (key,))
        return self._arrays[key]

    def _read(self, archive: zipfile.ZipFile) -> None:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > os.path.getsize(self._file_name):
            raise _damaged(self._file_name, 'it says to be larger than it is')
        self._arrays = {}
        for member in members:
            if member.compress_type != zipfile.ZIP_STORED:
                raise _damaged(self._file_name, 'compressed')
            name = member.filename
            if not re.match(r'a\d+(_lengths)?\.npy$', name):
                raise _damaged(self._file_name, 'unexpected member %r' % name)
            self._arrays[name[: -len('.npy')]] = self._array(archive.read(member))

    def _array(self, content: bytes) -> np.ndarray:
        file = io.BytesIO(content)
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise _damaged(self._file_name, 'unexpected version %s of an array' % (version,))
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype not in (np.dtype(np.uint8), np.dtype(np.int64)) or len(shape) != 1:
            raise _damaged(self._file_name, 'unexpected array of %s %s' % (dtype, shape))
        data = content[file.tell() :]
        if len(data) != shape[0] * dtype.itemsize:
            raise _damaged(self._file_name, 'an array is not as long as it says')
        return np.frombuffer(data, dtype)


class _State:
    """Reads variables from a bundle's checkpoint, by the names of their ops."""

    def __init__(self, path: str, variables: Dict[str, List[str]]):
        self._prefix = os.path.join(os.path.realpath(path), _STATE)
        self._variables = variables
        self._path = path
        if variables:
            self._check_sizes()

    def __call__(self, names: List[str]) -> Iterable[Dict[str, np.ndarray]]:
        for name in names:
            dtype, key, part = self._variables[name]
            try:
                yield {name: self._restore(key, part, tf.as_dtype(dtype))}
            except (tf.errors.OpError, ValueError, TypeError) as error:
                raise _damaged(self._path, 'variable %s: %s' % (name, error)) from None

    def _restore(self, key: str, part: str, dtype) -> np.ndarray:
        if not part:
            return self._reader.get_tensor(key)
        (value,) = _run_alone(
            lambda: tf.raw_ops.RestoreV2(
                prefix=self._prefix, tensor_names=[key], shape_and_slices=[part], dtypes=[dtype]
            )
        )
        return value

    def _check_sizes(self) -> None:
        _inside(self._path, _STATE + '.index')
        shards = [n for n in _listdir(self._path) if n.startswith(_STATE + '.data-')]
        there = sum(os.path.getsize(_inside(self._path, name)) for name in shards)
        try:
            self._reader = tf1.train.load_checkpoint(self._prefix)
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
        except (tf.errors.OpError, ValueError, RuntimeError, SystemError) as error:
            raise _damaged(self._path, error) from None
        for name, (dtype, key, _) in self._variables.items():
            if key not in shapes:
                raise _damaged(self._path, 'no variable %s in its checkpoint' % name)
            if dtypes[key] != tf.as_dtype(dtype):
                raise _damaged(self._path, '%s is %s, not %s' % (name, dtypes[key], dtype))
            if _product(shapes[key]) * dtypes[key].size > there and dtypes[key] != tf.string:
                raise _damaged(self._path, '%s says to be larger than the file' % name)


def _listdir(path: str) -> List[str]:
    return sorted(os.listdir(path)) if os.path.isdir(path) else []
