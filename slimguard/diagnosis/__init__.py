"""Why a step went bad: it is captured, run again, searched for its cause, and kept in a bundle.

The files:

    capture.py        keeps what a bad step drew
    draws.py          which ops draw: read an input, or make random numbers
    exported_step.py  exports a step from its graph, as plain data
    rerun_step.py     runs an exported step again, in a graph of its own
    measured_step.py  the ranges of the tensors of a step
    diagnose.py       finds the op that was the first to make a non-finite number
    explain_step.py   explains each way in which a step can be bad
    op_rules.py       by type of op, the inputs that make NaN or Inf: 'log of 0'
    bad_rows.py       which rows of the batch are at fault
    diagnosis.py      Diagnosis: the result, in a few lines and as data
    ranges.py         describes an array in a line: its range, and its non-finite values
    evidence.py       puts capture, diagnosis and bundle together, for training loops
    bundle/           a bad step in a folder, to be opened elsewhere
    replay.py         the command that runs a bundle
"""
