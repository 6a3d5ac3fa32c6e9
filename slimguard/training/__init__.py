"""Loops: what runs a train op, what watches each step, and what ends a training.

The way of a bad step, in any loop:

    hooked_session.py     a session that calls hooks; HookedStep, the one way to run a step
    gate_watcher.py       the hook behind NanLossHook, which gets the values of each step
    watched_runs.py       which runs are steps, what to fetch in them, and what the values show
    open_incident.py      a bad step from these values to its line in the record
    incident_handler.py   examines, decides, acts and records (in incidents/journal.py)

What that needs:

    step_history.py       the numbers of the last steps: to judge the next, and for TensorBoard
    recovery.py           back to an earlier state: one process, or a job
    learning_rate_factor.py  the factor of the learning rates after that, kept for a restart
    hook_calls.py         calls the user's hooks around a run, and checks what they fetch
    fetch_structures.py   whatever a session is asked to fetch and feed; runs that come again
    prepared_runs.py      runs that come again, each kind prepared once

The loops:

    watch.py              watch(), for a plain session
    slim_training.py      a training in slim's loop: what it has to be, and what is around it
    slim_loop.py          the step function and session wrapper for slim.learning.train
    hook_loop.py          a loop that knows hooks only, and where its record is

Around a training:

    training.py           its settings; captures bad steps, and saves before an error ends it
    stop_signals.py       SIGTERM and Ctrl-C end a training, with everything saved
    progress.py           the progress bar

The hook that users see is in :mod:`slimguard.hooks`.
"""
