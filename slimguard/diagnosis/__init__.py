"""Why a step went bad: it is captured, run again, searched for its cause, and kept in a bundle.

The files:

    capture.py        keeps what a bad step drew
    draws.py          which ops draw something from outside, or by chance
    step.py           a step that can be run again, in the training's session or in a copy
    exported_step.py  a step as plain data, taken out of its graph
    step_copy.py      a step in a graph of its own, built of that data
    diagnose.py       finds the op that made the step bad: measures, searches, explains
    measured_step.py  the ranges of the tensors of a step
    first_op.py       which op was the first to make a non-finite number
    explanations.py   explains a step, for each way in which it can be bad
    updates.py        explains an update that turns non-finite although its inputs are finite
    causes.py         a table: what ops require of their inputs, and what a violation is called
    bad_rows.py       which rows of the batch are at fault
    diagnosis.py      Diagnosis: the result, in a few lines and as data
    ranges.py         describes an array in a line: its range, and its non-finite values
    evidence.py       capture, diagnosis and bundle together, for loops that train
    bundle/           a bad step in a folder, to be opened elsewhere
    replay.py         the command that runs a bundle
"""
