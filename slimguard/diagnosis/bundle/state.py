"""The state of a bundle: a checkpoint of the variables as they were before the step."""

from typing import Any, Dict, Iterable, List

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.diagnosis.bundle import index
from slimguard.diagnosis.bundle.files import INDEX, STATE, BundleError, Files, brief, damaged
from slimguard.graph.sessions import OWN_WORK


def run_alone(build) -> Any:
    """Builds and runs something in a graph and a session of its own, which takes no GPU.

    Args:
      build: called in the graph; returns fetches, or a tuple of fetches and what to feed.
    """
    with OWN_WORK, tf.Graph().as_default(), tf.device('/cpu:0'):
        built = build()
        fetches, feed = built if isinstance(built, tuple) else (built, None)
        with tf1.Session(config=tf1.ConfigProto(device_count={'GPU': 0})) as session:
            return session.run(fetches, feed)


class State:
    """Reads variables from a bundle's checkpoint, by the names of their ops.

    Args:
      opened: the files of the bundle.
      variables: for each op's name its dtype, its name in the checkpoint and which part it is.

    Raises:
      BundleError: if the checkpoint does not hold them.
    """

    def __init__(self, opened: Files, variables: Dict[str, List[str]]):
        self._files = opened
        self._variables = variables
        if variables:
            self._index = index.parse(opened.read(INDEX))
            self._check_data()
            for name in variables:
                self._check(name)

    def __call__(self, names: List[str]) -> Iterable[Dict[str, np.ndarray]]:
        reader = None
        for name in names:
            try:
                # Not `load_checkpoint`, which would follow a state file in a folder of that name.
                reader = reader or tf1.train.NewCheckpointReader(self._files.state_prefix())
                value = self._value(reader, name)
            except BundleError:
                raise
            except Exception as error:  # TensorFlow's readers have raised various ones
                why = 'variable %s: %s: %s' % (brief(name), type(error).__name__, error)
                raise damaged(self._files.path, why) from None
            yield {name: value}

    def _value(self, reader, name: str) -> np.ndarray:
        dtype, key, part = self._variables[name]
        self._check_strings(key)
        if part:
            return _restore(self._files.state_prefix(), key, part, dtype)
        return reader.get_tensor(key)

    def _shard(self, number: int) -> str:
        return '%s.data-%05d-of-%05d' % (STATE, number, self._index.shards)

    def _check_data(self) -> None:
        """Whether all that the index lists, asked for or not, lies inside of the data files."""
        ends: Dict[int, int] = {}
        for entry in self._index.entries.values():
            ends[entry.shard] = max(ends.get(entry.shard, 0), entry.offset + entry.size)
        for number, end in ends.items():
            name = self._shard(number)
            if self._files.size(name) < end:
                raise damaged(name, '%s lists %d bytes of it, and it has fewer' % (INDEX, end))

    def _check(self, name: str) -> None:
        dtype, key, _ = self._variables[name]
        entry = self._index.entries.get(key.encode('utf-8', 'surrogatepass'))
        if entry is None:
            raise damaged(INDEX, 'no variable %s in it' % brief(name))
        if entry.dtype != tf.as_dtype(dtype):
            raise damaged(INDEX, '%s is %s, not %s' % (brief(name), entry.dtype.name, dtype[:40]))

    def _check_strings(self, key: str) -> None:
        """TensorFlow takes the memory that the lengths of strings ask for."""
        entry = self._index.entries[key.encode()]
        if entry.dtype != tf.string or entry.is_sliced:
            return
        with self._files.open(self._shard(entry.shard)) as file:
            file.seek(entry.offset)
            if not index.are_strings(file.read(entry.size), entry.shape):
                raise damaged(self._shard(entry.shard), 'strings of wrong lengths')


def _restore(prefix: str, key: str, part: str, dtype: str) -> np.ndarray:
    """Reads a part of a partitioned variable."""
    (value,) = run_alone(
        lambda: tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=[key],
            shape_and_slices=[part],
            dtypes=[tf.as_dtype(dtype)],
        )
    )
    return value
