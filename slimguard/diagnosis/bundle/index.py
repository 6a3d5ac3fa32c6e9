"""The index of a checkpoint, read without TensorFlow, whose reader ends the process over a bad one.

`tf.train.load_checkpoint` takes an index at its word: an entry that does not parse, or a shape that
overflows, fails a check in C++ that nothing can catch. The file is a table as LevelDB has it:
blocks of keys and values, a block that lists them, and a footer. A value is a `BundleEntryProto`.
"""

import struct
import warnings
from typing import Dict, Iterator, NamedTuple, Tuple

import tensorflow as tf

# The message that TensorFlow itself writes; no public module has it.
from tensorflow.core.protobuf import tensor_bundle_pb2

_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
_MAGIC = struct.pack('<Q', 0xDB4775248B80FB57)
_SUM_BYTES = 4  # of the lengths of strings
MOST_DIMENSIONS = 254  # of a TensorShape
_MOST_SHARDS = 100000


class Entry(NamedTuple):
    """A tensor of a checkpoint.

    Attributes:
      dtype: its DType.
      shape: its sizes.
      shard: which data file holds it.
      offset, size: where in that file, in bytes.
      is_sliced: whether it is in parts that are entries of their own; then it has no bytes itself.
    """

    dtype: tf.DType
    shape: Tuple[int, ...]
    shard: int
    offset: int
    size: int
    is_sliced: bool


class Index(NamedTuple):
    """What an index says: how many data files there are, and the tensors by their names."""

    shards: int
    entries: Dict[bytes, Entry]


def parse(content: bytes) -> Index:
    """Reads an index.

    Raises:
      ValueError: if it is not as TensorFlow writes one. Other errors are possible too.
    """
    entries, shards, last = {}, None, None
    for key, value in _table(content):
        if last is not None and key <= last:
            raise ValueError('its keys are not in order')
        last = key
        if shards is None:
            shards = _header(key, value)
        else:
            entries[key] = _entry(value, shards)
    if shards is None:
        raise ValueError('it has no header')
    return Index(shards, entries)


def _header(key: bytes, value: bytes) -> int:
    header = _message(tensor_bundle_pb2.BundleHeaderProto, value)
    if key or not 0 < header.num_shards <= _MOST_SHARDS:
        raise ValueError('it has no header, or one of %d data files' % header.num_shards)
    return header.num_shards


def _entry(value: bytes, shards: int) -> Entry:
    entry = _message(tensor_bundle_pb2.BundleEntryProto, value)
    shape = tuple(dim.size for dim in entry.shape.dim)
    dtype = tf.as_dtype(entry.dtype)
    count = elements(shape)
    is_good = len(shape) <= MOST_DIMENSIONS and all(size >= 0 for size in shape)
    if not is_good or entry.shape.unknown_rank or elements(size or 1 for size in shape) >= 1 << 60:
        raise ValueError('a tensor of shape %s' % str(shape)[:100])
    if not 0 <= entry.shard_id < shards or entry.offset < 0 or entry.size < 0:
        raise ValueError('a tensor in data file %d of %d' % (entry.shard_id, shards))
    if not entry.slices and not _fits(count, dtype, entry.size):
        raise ValueError('%d values of %s in %d bytes' % (count, dtype.name, entry.size))
    return Entry(dtype, shape, entry.shard_id, entry.offset, entry.size, bool(entry.slices))


def _message(kind, value: bytes):
    """A message that is written as TensorFlow writes it.

    Parsers differ in what they let pass: Python's for TensorFlow 1.15 only warns of the end of a
    group that never began, where the one in C++ ends the process.
    """
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', RuntimeWarning)
        message = kind.FromString(value)
    if message.SerializeToString() != value:
        raise ValueError('a message that TensorFlow would write otherwise')
    return message


def _fits(count: int, dtype: tf.DType, size: int) -> bool:
    # Each string takes a byte for its length at least.
    return count <= size if dtype == tf.string else count * dtype.size == size


def elements(shape) -> int:
    """How many elements there are; Python's ints do not overflow."""
    count = 1
    for size in shape:
        count *= size
    return count


def are_strings(content: bytes, shape) -> bool:
    """Whether the bytes of a tensor of strings are as long as the lengths that they begin with."""
    at = total = 0
    for _ in range(elements(shape)):
        length, at = _varint(content, at)
        total += length
    return at + _SUM_BYTES + total == len(content)


# The table.


def _table(content: bytes) -> Iterator[Tuple[bytes, bytes]]:
    if len(content) < _FOOTER_BYTES or not content.endswith(_MAGIC):
        raise ValueError('it does not end as an index does')
    footer = len(content) - _FOOTER_BYTES
    _, at = _handle(content, footer)
    (start, size), _ = _handle(content, at)
    end = 0
    for _, value in _block(content[:footer], start, size):
        (first, length), _ = _handle(value, 0)
        if first < end:
            raise ValueError('two of its blocks overlap')
        end = first + length
        yield from _block(content[:footer], first, length)


def _block(content: bytes, start: int, size: int) -> Iterator[Tuple[bytes, bytes]]:
    """The keys and values of a block; a key has its beginning in common with the one before."""
    block = content[start : start + size]
    if len(block) != size or size < 4 or len(content) < start + size + _TRAILER_BYTES:
        raise ValueError('a block lies outside of it')
    if content[start + size] != 0:
        raise ValueError('a block is compressed')
    (restarts,) = struct.unpack_from('<L', block, size - 4)
    end = size - 4 * (restarts + 1)
    if end < 0:
        raise ValueError('a block has too many restarts')
    whole, at, key = {0}, 0, b''
    while at < end:
        begin = at
        (shared, at), (more, at), (length, at) = _three(block, at)
        if shared > len(key) or at + more + length > end:
            raise ValueError('a key or value is longer than its block')
        if not shared:
            whole.add(begin)
        key = key[:shared] + block[at : at + more]
        yield key, block[at + more : at + more + length]
        at += more + length
    if not whole.issuperset(struct.unpack_from('<%dL' % restarts, block, end)):
        raise ValueError('a block has a restart where no key begins')


def _three(block: bytes, at: int):
    first = _varint(block, at)
    second = _varint(block, first[1])
    return first, second, _varint(block, second[1])


def _handle(content: bytes, at: int) -> Tuple[Tuple[int, int], int]:
    start, at = _varint(content, at)
    size, at = _varint(content, at)
    return (start, size), at


def _varint(content: bytes, at: int) -> Tuple[int, int]:
    """An int of seven bits a byte, and where the next thing begins."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at + shift // 7]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + shift // 7 + 1
    raise ValueError('a number of more than ten bytes')
