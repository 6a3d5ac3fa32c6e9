"""The place of a process in a job: its own name, and the device of the job's shared table."""

from typing import NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs


class Place(NamedTuple):
    """The place of a process in a job.

    Attributes:
      worker: its name, such as ``'/job:worker/task:1'``.
      table: the device of the shared table, such as ``'/job:ps/task:0'``.
    """

    worker: str
    table: str

    @property
    def is_chief(self) -> bool:
        """Whether its name makes it the chief, by the rule of TensorFlow's own libraries."""
        device = tf1.DeviceSpec.from_string(self.worker)
        return device.job in ('chief', 'master') or (device.job == 'worker' and device.task == 0)


def is_remote(target: str) -> bool:
    """Whether sessions on `target` run on a server."""
    return '://' in target


def place_of(graph: tf.Graph, near: str) -> Optional[Place]:
    """The place of the process that computes on the device `near`; None if it trains alone."""
    step = graphs.global_step(graph)
    if step is None:
        return None
    holder, worker = tf1.DeviceSpec.from_string(step.device), tf1.DeviceSpec.from_string(near)
    if holder.job is None or worker.job is None or worker.task is None:
        return None
    return Place(
        '/job:%s/task:%d' % (worker.job, worker.task),
        '/job:%s/task:%d' % (holder.job, holder.task or 0),
    )
