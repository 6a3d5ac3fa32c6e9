"""Why a step went bad: it is captured, run again, searched for its cause, and kept in a bundle.

The files:

    capture.py        keeps what a bad step drew
    draws.py          which ops draw something from outside, or by chance
    step_ops.py       which ops make up a step
    rerun/            a step that can be run again, in place or in a copy of the graph
    budget.py         how long that may take while the training goes on
    diagnose.py       finds the op that made the step bad: measures, searches, explains
    measured_step.py  the ranges of the tensors of a step
    search.py         where in a step non-finite numbers began
    explanations.py   explains a step, for each way in which it can be bad
    updates.py        explains an update that is not finite though all it takes is
    causes.py         what ops ask of their inputs, and what is said where those break it: a table
    preconditions.py  which inputs break it
    large_numbers.py  rows of the batch and weights that are far too large
    hidden_ops.py     what may be at fault inside of a loop or a function
    diagnosis.py      what a diagnosis says, in a few lines and as data
    ranges.py         what there is to say about an array of numbers in a line
    evidence.py       capture, diagnosis and bundle together, for loops that train
    bundle/           a bad step in a folder, to be opened elsewhere
    disk_room.py      bundles and checkpoints on one disk: which gives way
    replay.py         the command that runs a bundle
"""
