"""Loops: what runs a train op, what watches each step, and what ends a training.

What watches, in any loop:

    gate_watcher.py       GateWatcher, the hook behind NanLossHook
    watched_run.py        which runs are steps to watch, what to fetch in them, how to read it
    incident_reading.py   an Incident from a gate's values, a loss, or a check that raised
    incident_handler.py   examines, decides, acts and records
    open_incident.py      an incident while it is handled and examined
    recovery.py           back to a checkpoint: one process, or a job
    back_off.py           smaller updates after that
    watchers.py           hands them their training; picks the one that decides
    step_history.py       the last steps, and whether the next is a spike; TensorBoard's scalars

The loops:

    hooked_session.py     HookedStep, the one way to run a step; a session that calls hooks
    fetch_structures.py   whatever a session is asked to fetch and feed; runs that come again
    prepared_runs.py      runs that come again, each kind prepared once
    watched_session.py    watch(), for a plain session
    loop.py               the step function and session wrapper for slim.learning.train
    supervisor.py         what that asks of its Supervisor
    trainable.py          what a train op and its graph have to be, and what to do if they are not
    step_runner.py        one step: in one run, or by the step function

Around a training:

    training.py           what is said of it; captures, signals, progress, the last save
    hook_loop.py          opens that in a loop that knows hooks only, in the session's directory
    stop_signals.py       SIGTERM and Ctrl-C end a training, with everything saved
    progress.py           the progress bar

The hook that users see is in :mod:`slimguard.hooks`.
"""
