"""Splits large fetches: larger parts take more memory, and smaller ones more runs."""

from typing import Callable, Dict, Iterable, Iterator, List, TypeVar

import numpy as np
import tensorflow as tf

from slimguard.diagnosis.capture import Capture
from slimguard.graph import single_runs

# In a large graph, each run that fetches something new takes a good part of a second.
_VARIABLE_BYTES = 256 << 20
_UNKNOWN_BYTES = 1 << 20  # what a tensor of unknown rank counts for

_Thing = TypeVar('_Thing')


def in_chunks(
    things: Iterable[_Thing], size_of: Callable[[_Thing], int], most: int
) -> Iterator[List[_Thing]]:
    """`things` in lists of at most `most` bytes; a larger thing is in a list of its own."""
    chunk: List[_Thing] = []
    size = 0
    for thing in things:
        more = size_of(thing)
        if chunk and size + more > most:
            yield chunk
            chunk, size = [], 0
        chunk.append(thing)
        size += more
    if chunk:
        yield chunk


def variables_in_chunks(
    session, capture: Capture, names: Iterable[str]
) -> Iterator[Dict[str, np.ndarray]]:
    """The values of a step's variables, in parts that fit into memory, by the ops' names."""
    reads = capture.reads
    for chunk in in_chunks(names, lambda name: bytes_of(reads[name]), _VARIABLE_BYTES):
        yield single_runs.run_once(session, {name: reads[name] for name in chunk})


def bytes_of(tensor: tf.Tensor, rows: int = 1) -> int:
    """About how many bytes a tensor has; a dimension that is not known counts as `rows`."""
    if tensor.shape.rank is None:
        return _UNKNOWN_BYTES
    sizes = [size or rows for size in tensor.shape.as_list()]
    return int(np.prod(sizes, dtype=np.float64)) * max(tensor.dtype.base_dtype.size, 1)
