"""A queue in a session that needs no initialization: what a step puts there, a later run takes."""

from typing import Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.graph import plain_ops


class StagingArea:
    """Makes the ops of a staging area, on the current device; where they are, the area is.

    `tf.contrib.staging.StagingArea` had the same; it is gone, and the ops are not.

    Args:
      graph: the graph.
      dtypes: those of the tensors that are put there together.
      name: what the area is called, with a number if the graph has one of that name.
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
        """An int32 scalar: how many there are."""
        return self._create('StageSize', [], [tf.int32], name).outputs[0]

    def take(self) -> Sequence[tf.Tensor]:
        """The oldest; where there is none, this waits for one."""
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
