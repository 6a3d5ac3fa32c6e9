"""A bad step, run again as often as one likes, without writing.

The diagnosis works on a :class:`Step`: a session, the ops of the step, and the values to feed in
place of its sources. The step is the training's own (:func:`live_step`) if running the forward and
the backward pass again writes and draws nothing. Otherwise, and in another process, it comes from a
:class:`StepCopy`: a graph and a session of its own, with a copy of the variables.

    step.py           a step: which of its tensors can be fetched, and their values
    live_step.py      a step in the training's own session
    exported_step.py  a step as plain data, taken out of its graph
    step_copy.py      a step in a graph of its own, built of that data
    chunks.py         splits large fetches into parts that fit into memory
"""

from slimguard.diagnosis.rerun.chunks import bytes_of, variables_in_chunks
from slimguard.diagnosis.rerun.exported_step import ExportedStep, export
from slimguard.diagnosis.rerun.live_step import can_run_live, live_step
from slimguard.diagnosis.rerun.step import Step, batch_size, with_rows_replaced
from slimguard.diagnosis.rerun.step_copy import ReplayError, StepCopy

__all__ = [
    'ExportedStep',
    'ReplayError',
    'Step',
    'StepCopy',
    'batch_size',
    'bytes_of',
    'can_run_live',
    'export',
    'live_step',
    'variables_in_chunks',
    'with_rows_replaced',
]
