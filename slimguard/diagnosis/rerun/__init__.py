"""A bad step, run again as often as one likes, without writing.

:class:`Step` is what the diagnosis works on: a session, the ops of the step, and what to feed in
place of what they drew. It comes from the training itself (:func:`live_step`), where running the
forward and the backward pass again writes and draws nothing. Or it comes from a :class:`StepCopy`,
a graph of its own in a session of its own, with a copy of the variables: in another process, or
where the forward pass writes.

    step.py           a step: what of it can be run, and running it
    live_step.py      a step in the training's own session
    exported_step.py  a step as plain data, taken out of its graph
    step_copy.py      a step in a graph of its own, built of that data
    chunks.py         what is fetched at once, so that it fits into memory
"""

from slimguard.diagnosis.rerun.chunks import bytes_of, variables_in_chunks
from slimguard.diagnosis.rerun.exported_step import ExportedStep, ExportOnce
from slimguard.diagnosis.rerun.live_step import can_run_live, live_step
from slimguard.diagnosis.rerun.step import Step
from slimguard.diagnosis.rerun.step_copy import ReplayError, StepCopy

__all__ = [
    'ExportOnce',
    'ExportedStep',
    'ReplayError',
    'Step',
    'StepCopy',
    'bytes_of',
    'can_run_live',
    'live_step',
    'variables_in_chunks',
]
