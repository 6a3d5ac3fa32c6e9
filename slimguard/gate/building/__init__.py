"""Builds a gate: adds to the graph what the plan says.

The files, in the order of a step:
    builder.py            decides whether a step is bad, and carries the plan out
    copies.py             copies variables before forward writes, and restores variables
    fast_path.py          sums of squares, the cheap check that nearly every step passes, the limits
    exact_checks.py       the exact checks before and after the update
    flags.py              the findings: flags, each with a label, and a sentence made of them
    ranks.py              sends one process's findings to all that train together
    rank_libraries.py     finds the processes that train together: Horovod's, or a strategy's
    gated_clones.py       creates the gated ops a second time, behind a switch
    outcome.py            the tensors to fetch: how a step ended, what it returns, its measures
    announcement.py       keeps a bad step's report for a watcher; prints or raises without one
"""
