"""A queue that needs no initialization: a step puts values in, and a later run takes them."""

from typing import Optional, Sequence

import tensorflow as tf


class StagingArea:
    """Makes the ops of a staging area on the current device, which holds the area.

    `tf.contrib.staging.StagingArea` did the same; the class is gone, and its ops are still there.

    Args:
      graph: the graph.
      dtypes: the dtypes of the tensors of an entry.
      name: the name of the area; it gets a number if the graph has the name already.
    """

    def __init__(self, graph: tf.Graph, dtypes: Sequence[tf.DType], name: str):
        dtypes = [dtype.base_dtype for dtype in dtypes]
        self._of = {'dtypes': dtypes, 'shared_name': graph.unique_name(name)}

    def put(self, values: Sequence[tf.Tensor]) -> tf.Operation:
        return tf.raw_ops.Stage(values=values, shared_name=self._of['shared_name'])

    def size(self, name: Optional[str] = None) -> tf.Tensor:
        """An int32 scalar: how many entries there are."""
        return tf.raw_ops.StageSize(name=name, **self._of)

    def take(self) -> Sequence[tf.Tensor]:
        """Takes the oldest entry out, and returns it; waits for one if there is none."""
        return tf.raw_ops.Unstage(**self._of)

    def clear(self) -> tf.Operation:
        return tf.raw_ops.StageClear(**self._of)
