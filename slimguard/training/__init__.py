"""Loops: what runs a train op, what watches each step, and what ends a training.

    gate_watcher.py    from the values of a run to an incident, and from that to a policy
    watched_run.py     which guarded train ops a session.run holds
    loop.py            runs hooks inside the loop of slim.learning.train; watch()
    fast_step.py       a step of slim's in one prepared call
    hook_fetches.py    what hooks ask for in a run, merged
    preemption.py      SIGTERM and Ctrl-C
    progress.py        the progress bar
    checkpoint_dir.py  the directory that a session saves to
    occupancy.py       whether another process trains in a logdir

The hook that users see is in :mod:`slimguard.hooks`.
"""
