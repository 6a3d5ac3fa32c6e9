"""Arrays of every dtype of TensorFlow in an .npz, which `np.load` reads without pickles.

Numbers are stored as they are. Dtypes that numpy does not know (bfloat16, float8, int4, qint8) are
stored as unsigned ints of the same bits. The bytes of all strings of an array are stored in a row;
``NAME lengths`` has the length of each string, in the shape of the array. incident.json says which
dtype an array has.
"""

import zipfile
from typing import IO, Dict, Iterable, Tuple

import numpy as np
import tensorflow as tf

_LENGTHS = ' lengths'  # no name in a graph has a space in it


def save(file: IO[bytes], values: Iterable[Tuple[str, np.ndarray]]) -> Dict[str, str]:
    """Writes named arrays, one by one; returns their dtypes by name."""
    dtypes = {}
    with zipfile.ZipFile(file, 'w', allowZip64=True) as archive:
        for name, value in values:
            value = np.asarray(value)
            if value.dtype.kind in 'OSU':
                dtypes[name] = 'string'
                texts = [tf.compat.as_bytes(text) for text in value.ravel().tolist()]
                lengths = np.array([len(text) for text in texts], np.int64)
                _write(archive, name, np.frombuffer(b''.join(texts), np.uint8))
                _write(archive, name + _LENGTHS, lengths.reshape(value.shape))
            else:
                dtypes[name] = tf.as_dtype(value.dtype).name
                _write(archive, name, value if _is_known(value.dtype) else _bits(value))
    return dtypes


def bytes_of(value: np.ndarray) -> int:
    """About how many bytes `save` writes for an array."""
    if value.dtype.kind in 'OSU':
        return sum(len(tf.compat.as_bytes(text)) + 8 for text in value.ravel().tolist())
    return value.nbytes


def has(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether an archive has an array of that name."""
    return name + '.npy' in archive.NameToInfo


def load(archive: zipfile.ZipFile, name: str, dtype: str) -> np.ndarray:
    """Reads an array that is expected to have `dtype`, the name of a TensorFlow dtype.

    Raises:
      ValueError: if it has another dtype. numpy and zipfile may raise other errors.
    """
    value = _read(archive, name)
    if dtype == 'string':
        return _texts(value, _read(archive, name + _LENGTHS))
    expected = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    if not _is_known(expected) and value.dtype == _bits(np.zeros([], expected)).dtype:
        value = value.view(expected)
    if value.dtype != expected:
        raise ValueError('%s is %s, not %s' % (name, value.dtype, dtype))
    return value


def _is_known(dtype: np.dtype) -> bool:
    """Whether a dtype is numpy's own. Others, such as bfloat16, numpy writes but cannot read."""
    return dtype.isbuiltin == 1


def _bits(value: np.ndarray) -> np.ndarray:
    return value.view('u%d' % value.dtype.itemsize)


def _texts(content: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    if (lengths < 0).any() or lengths.sum() != content.size:
        raise ValueError('strings of wrong lengths')
    whole, ends = content.tobytes(), np.cumsum(lengths).tolist()
    texts = np.empty(lengths.size, object)
    texts[:] = [whole[start:end] for start, end in zip([0] + ends, ends)]
    return texts.reshape(lengths.shape)


def _write(archive: zipfile.ZipFile, name: str, value: np.ndarray) -> None:
    with archive.open(name + '.npy', 'w', force_zip64=True) as member:
        np.lib.format.write_array(member, value, allow_pickle=False)


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    if not has(archive, name):
        raise ValueError('there is no array %r' % name)
    with archive.open(name + '.npy') as member:
        return np.lib.format.read_array(member, allow_pickle=False)
