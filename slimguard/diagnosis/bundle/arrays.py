"""The arrays of a bundle: written as plain numbers into an .npz, and read without believing it."""

import os
import re
import struct
import zipfile
from typing import IO, Any, Dict, List

import numpy as np
import tensorflow as tf

from slimguard.diagnosis.bundle.files import ARRAYS, JSON, Files, brief, damaged
from slimguard.diagnosis.bundle.index import MOST_DIMENSIONS, elements
from slimguard.system.numbers import is_whole

_MOST_DIRECTORY = 8 << 20  # bytes that list what is in the file


def save_arrays(values: Dict[str, np.ndarray], path: str) -> List[Dict[str, Any]]:
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


def bytes_of_array(value: np.ndarray) -> int:
    """How many bytes `save_arrays` writes for an array."""
    if value.dtype.kind in 'OSU':
        return sum(len(tf.compat.as_bytes(text)) + 8 for text in value.ravel().tolist())
    return value.nbytes


def read_arrays(opened: Files, said: List[Dict[str, Any]]) -> Dict[str, np.ndarray]:
    """Reads what `save_arrays` wrote; `said` is what it returned, by way of incident.json.

    Raises:
      BundleError: if they are not as `save_arrays` writes them. Other errors are possible too.
    """
    with opened.open(ARRAYS) as file:
        contents = _read_npz(file)
    return {entry['name']: _array(contents, entry) for entry in said}


def _array(contents: Dict[str, np.ndarray], entry: Dict[str, Any]) -> np.ndarray:
    name, dtype, shape = entry['name'], entry['dtype'], entry['shape']
    is_good = isinstance(name, str) and isinstance(dtype, str) and isinstance(shape, list)
    if not is_good or len(shape) > MOST_DIMENSIONS or not all(map(_is_size, shape)):
        raise damaged(JSON, 'unexpected name, dtype or shape %s' % brief([name, dtype, shape]))
    flat = _member(contents, entry['key'])
    if dtype == 'string':
        flat = _texts(flat, _member(contents, entry['key'] + '_lengths'))
    else:
        flat = flat.view(tf.as_dtype(dtype).as_numpy_dtype)
    if flat.size != elements(shape):
        raise damaged(ARRAYS, '%s has %d values, not %s' % (brief(name), flat.size, brief(shape)))
    return flat.reshape(shape)


def _is_size(size) -> bool:
    return is_whole(size) and 0 <= size < 1 << 63


def _member(contents: Dict[str, np.ndarray], key: str) -> np.ndarray:
    if key not in contents:
        raise damaged(ARRAYS, 'no array %s' % brief(key))
    # Removed from the dict: else a hundred names for one large array would be a hundred copies.
    return contents.pop(key)


def _texts(content: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    lengths = lengths.tolist()
    if any(length < 0 for length in lengths) or sum(lengths) != content.size:
        raise damaged(ARRAYS, 'strings of wrong lengths')
    whole, start = content.tobytes(), 0
    texts = np.empty([len(lengths)], object)
    for number, length in enumerate(lengths):
        texts[number] = whole[start : start + length]
        start += length
    return texts


def _read_npz(file: IO[bytes]) -> Dict[str, np.ndarray]:
    """The arrays of an .npz that `np.savez` wrote: bytes or int64, and nothing compressed.

    `np.load` allocates what a file claims to hold before it looks at how long the file is.
    Here all that is in the file is no larger than the file.
    """
    size = file.seek(0, os.SEEK_END)
    if _directory_bytes(file, size) > _MOST_DIRECTORY:
        raise damaged(ARRAYS, 'a directory of more than %d bytes' % _MOST_DIRECTORY)
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > size:
            raise damaged(ARRAYS, 'it says to be larger than it is')
        for member in members:
            name = _name_of(member)
            if name in arrays:
                raise damaged(ARRAYS, 'two members %r' % name)
            arrays[name] = _npy(archive.read(member))
    return arrays


_END, _END_64, _LOCATOR = b'PK\x05\x06', b'PK\x06\x06', b'PK\x06\x07'
_END_BYTES, _END_64_BYTES, _LOCATOR_BYTES = 22, 56, 20


def _directory_bytes(file: IO[bytes], size: int) -> int:
    """How many bytes `zipfile` would take for the directory of an archive without a comment."""
    length = _END_BYTES + _LOCATOR_BYTES + _END_64_BYTES
    file.seek(max(0, size - length))
    tail = file.read(length).rjust(length, b'\0')
    end, locator = tail[-_END_BYTES:], tail[_END_64_BYTES:-_END_BYTES]
    if not end.startswith(_END) or end[-2:] != b'\0\0':
        raise damaged(ARRAYS, 'it does not end as an archive of numpy does')
    (directory,) = struct.unpack_from('<L', end, 12)
    if locator.startswith(_LOCATOR) and tail.startswith(_END_64):
        (directory,) = struct.unpack_from('<Q', tail, 40)
    return directory


_MEMBER = re.compile(r'(a\d{1,9}(?:_lengths)?)\.npy$')


def _name_of(member: zipfile.ZipInfo) -> str:
    found = _MEMBER.match(member.filename)
    if found is None:
        raise damaged(ARRAYS, 'unexpected member %s' % brief(member.filename))
    is_stored = member.compress_type == zipfile.ZIP_STORED and member.flag_bits == 0
    if not is_stored or member.compress_size != member.file_size:
        raise damaged(ARRAYS, 'member %s is not stored as it is' % member.filename)
    return found.group(1)


# `ast`, which numpy reads a header with, can be made to crash Python.
_HEADER = re.compile(
    rb"\{'descr': '(\|u1|<i8)', 'fortran_order': False, 'shape': \((\d{1,18}),\), \} *\n?$"
)
_HEADER_START = b'\x93NUMPY\x01\x00'


def _npy(content: bytes) -> np.ndarray:
    start = len(_HEADER_START) + 2
    end = start + int.from_bytes(content[start - 2 : start], 'little')
    header = _HEADER.match(content[start:end])
    if not content.startswith(_HEADER_START) or header is None:
        raise damaged(ARRAYS, 'unexpected array that begins with %s' % brief(content[:100]))
    dtype = np.dtype(header.group(1).decode())
    if len(content) - end != int(header.group(2)) * dtype.itemsize:
        raise damaged(ARRAYS, 'an array is not as long as it says')
    return np.frombuffer(content, dtype, offset=end)
