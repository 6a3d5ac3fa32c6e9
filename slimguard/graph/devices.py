"""The device on which a tensor is checked: the gate's own, or the CPU of the tensor's task.

A *task* is one process of a cluster. Findings about values in another task than the gate's own
should cross the network in one piece, and as flags. And findings about values on an accelerator
should come to the CPU in one piece: so they are joined where the values are.
"""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.graph.variables import device_of
from slimguard.graph.walk import is_reference


def task_of(device: str) -> tuple:
    """The task that a device belongs to; the same for all devices that name none."""
    spec = tf1.DeviceSpec.from_string(device)
    return spec.job, spec.replica or 0, spec.task or 0


def processor_of(device: str) -> str:
    """The processor that goes with a device: flags are read there."""
    spec = tf1.DeviceSpec.from_string(device)
    return tf1.DeviceSpec(spec.job, spec.replica, spec.task, 'CPU', 0).to_string()


class Home:
    """Where what is found comes together.

    Attributes:
      device: the device, a CPU.
      op: an op that is there.
    """

    def __init__(self, op: tf.Operation):
        self.op = op
        self.device = op.device

    def device_near(self, tensor: tf.Tensor) -> str:
        """The device for what is found about a tensor: of its task, if that is known."""
        device = device_of(tensor.op)
        is_here = task_of(device) in (task_of(self.device), task_of(''))
        return self.device if is_here else processor_of(device)

    def joins_at(self, tensor: tf.Tensor) -> str:
        """Tells what is joined before it comes to `device_near`: what gives the same is.

        To join it is up to where the first of it is. Where nobody said which device of this task
        that is, it may be any.
        """
        device = device_of(tensor.op)
        spec = tf1.DeviceSpec.from_string(device)
        is_processor = spec.device_type == 'CPU' and not spec.device_index
        is_unknown = spec.device_type is None
        if is_processor or (is_unknown and self.device_near(tensor) != self.device):
            return self.device_near(tensor)
        return device

    def near(self, tensor: tf.Tensor) -> tf.Operation:
        """The op in whose place to check a tensor: its own.

        A scalar from elsewhere comes here, as a sum of it would have to.
        """
        comes = tensor.shape.rank == 0 and not is_reference(tensor)
        return self.op if comes and self.device_near(tensor) != self.device else tensor.op
