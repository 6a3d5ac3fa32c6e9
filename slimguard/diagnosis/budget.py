"""How long the search for a cause may take while the training goes on.

A session run cannot be interrupted, and the first run of a large graph spends most of its time on
preparing it. So the time of a search is estimated beforehand, from the step's ops and the bytes of
its tensors. If it is too long, there is no search, and `replay` can search the bundle later.
"""

from slimguard import graph as graphs
from slimguard.diagnosis.capture import Capture
from slimguard.diagnosis.rerun import bytes_of

SECONDS = 10.0
# Measured on two cores: a step of ResNet-50, and of a detector with 10,000 ops.
_SECONDS_AN_OP = 5e-4
_SECONDS_A_BYTE = 4e-9


def is_within(seconds: float, capture: Capture, rows: int) -> bool:
    """Whether a search through a captured step takes no longer than `seconds`.

    Args:
      seconds: the time that there is.
      capture: the `Capture`.
      rows: the size of the batch.
    """
    left = seconds - len(capture.ops) * _SECONDS_AN_OP
    floats = (t for op in capture.ops for t in op.outputs if graphs.is_float(t))
    return sum(bytes_of(tensor, rows) for tensor in floats) * _SECONDS_A_BYTE <= left
