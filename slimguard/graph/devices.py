"""The device on which a tensor is checked: the gate's own, or the CPU of the tensor's task.

A *task* is one process of a cluster. Flags about values of another task are joined in that task, to
cross the network as one tensor. Findings about values on an accelerator are joined on it, to reach
the CPU as one tensor.
"""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.graph.variables import device_of
from slimguard.graph.walk import is_reference


def task_of(device: str) -> tuple:
    """The task that a device belongs to; one value stands for all devices without a task."""
    spec = tf1.DeviceSpec.from_string(device)
    return spec.job, spec.replica or 0, spec.task or 0


def processor_of(device: str) -> str:
    """The CPU of a device's task, where flags are read."""
    spec = tf1.DeviceSpec.from_string(device)
    return tf1.DeviceSpec(spec.job, spec.replica, spec.task, 'CPU', 0).to_string()


class Home:
    """The device where the findings of all checks come together.

    Attributes:
      device: the device, a CPU.
      op: an op on that device.
    """

    def __init__(self, op: tf.Operation):
        self.op = op
        self.device = op.device

    def device_near(self, tensor: tf.Tensor) -> str:
        """The device for findings about a tensor: the CPU of its task, or `device` if unknown."""
        device = device_of(tensor.op)
        is_here = task_of(device) in (task_of(self.device), task_of(''))
        return self.device if is_here else processor_of(device)

    def joins_at(self, tensor: tf.Tensor) -> str:
        """A key: findings about tensors with the same key are joined, and then go to `device_near`.

        They are joined on the device of the first. A tensor without a device may be anywhere in
        this task, so it does not have the key of a tensor on the CPU.
        """
        device = device_of(tensor.op)
        spec = tf1.DeviceSpec.from_string(device)
        is_processor = spec.device_type == 'CPU' and not spec.device_index
        is_unknown = spec.device_type is None
        if is_processor or (is_unknown and self.device_near(tensor) != self.device):
            return self.device_near(tensor)
        return device

    def near(self, tensor: tf.Tensor) -> tf.Operation:
        """The op on whose device a tensor is checked: its own; `op` for a scalar of another task.

        Such a scalar is sent as it is: its sum of squares would be another scalar to send.
        """
        comes = tensor.shape.rank == 0 and not is_reference(tensor)
        return self.op if comes and self.device_near(tensor) != self.device else tensor.op
