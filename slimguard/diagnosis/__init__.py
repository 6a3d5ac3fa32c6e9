"""Why a step went bad: it is captured, run again, searched for its cause, and kept in a bundle.

The files:

    capture.py        keeps what a bad step drew
    draws.py          which ops draw something from outside, or by chance
    step_ops.py       which ops make up a step
    rerun/            a step that can be run again, in place or in a copy of the graph
    budget.py         how long a search may take while the training waits for it
    diagnose.py       finds the op that made the step bad: measures, searches, explains
    measured_step.py  the ranges of the tensors of a step
    search.py         where in a step non-finite numbers began
    explanations.py   explains a step, for each way in which it can be bad
    updates.py        explains an update that turns non-finite although its inputs are finite
    causes.py         a table: what ops require of their inputs, and what a violation is called
    large_numbers.py  rows of the batch and weights that are far too large
    diagnosis.py      Diagnosis: the result, in a few lines and as data
    ranges.py         describes an array in a line: its range, and its non-finite values
    evidence.py       capture, diagnosis and bundle together, for loops that train
    bundle/           a bad step in a folder, to be opened elsewhere
    replay.py         the command that runs a bundle
"""
