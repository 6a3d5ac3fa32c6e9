"""A queue that needs no initialization: a step puts values in, and a later run takes them."""

from typing import Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.graph import plain_ops


class StagingArea:
    """Makes the ops of a staging area on the current device, which holds the area.

    `tf.contrib.staging.StagingArea` did the same; the class is gone, and its ops are still there.

    Args:
      graph: the graph.
      dtypes: the dtypes of the tensors of an entry.
      name: the name of the area; it gets a number if the graph has the name already.
    """

    def __init__(self, graph: tf.Graph, dtypes: Sequence[tf.DType], name: str):
        self._dtypes = [dtype.base_dtype for dtype in dtypes]
        kept = tf1.AttrValue.ListValue(type=[dtype.as_datatype_enum for dtype in self._dtypes])
        shared_name = tf.compat.as_bytes(graph.unique_name(name))
        self._attributes = {
            'dtypes': tf1.AttrValue(list=kept),
            'shared_name': tf1.AttrValue(s=shared_name),
        }

    def put(self, values: Sequence[tf.Tensor]) -> tf.Operation:
        return self._create('Stage', values, [])

    def size(self, name: Optional[str] = None) -> tf.Tensor:
        """An int32 scalar: how many entries there are."""
        return self._create('StageSize', [], [tf.int32], name).outputs[0]

    def take(self) -> Sequence[tf.Tensor]:
        """Takes the oldest entry out, and returns it; waits for one if there is none."""
        return self._create('Unstage', [], self._dtypes).outputs

    def clear(self) -> tf.Operation:
        return self._create('StageClear', [], [])

    def _create(
        self,
        kind: str,
        inputs: Sequence[tf.Tensor],
        dtypes: Sequence[tf.DType],
        name: Optional[str] = None,
    ) -> tf.Operation:
        return plain_ops.create(kind, inputs, dtypes, dict(self._attributes), name)
