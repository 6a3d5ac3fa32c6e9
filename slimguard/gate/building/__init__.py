"""Builds a gate: adds to the graph what the plan says.

The files, in the order of a step:
    builder.py            decides whether a step is bad, and carries the plan out
    copies.py             copies what forward writes are about to change, and puts variables back
    square_sums.py        the sums of squares of the checked values
    fast_path.py          the cheap check of them that nearly every step passes, and the limits
    step_checks.py        the exact checks before and after the update
    finite_checks.py      exact checks of many values
    flags.py              what checks found: flags, each with a label, and a sentence made of them
    ranks.py              sends the findings of one process to all that train together
    rank_libraries.py     finds such processes: Horovod's, or those of a strategy
    shared_signals.py     the signals that such processes send each other
    tasks.py              the tasks that hold variables: each copies, updates and undoes its own
    gated_clones.py       creates the gated ops a second time, behind a switch
    outcome.py            the tensors to fetch, and the value that the guarded train op returns
    announcement.py       prints or raises if no watcher is there
    untold.py             keeps the bad steps that no watcher has read yet
    measures.py           the loss, learning rate and gradients of a step, good or bad
"""
