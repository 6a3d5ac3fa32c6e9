"""Loops: what runs a train op, what watches each step, and what ends a training.

The way of a bad step, in any loop:

    hooked_session.py     HookedStep, the one way to run a step; a session that calls hooks
    gate_watcher.py       GateWatcher, the hook behind NanLossHook, gets the values of the run
    watched_run.py        what was fetched in it, and the incidents that the values tell of
    incident_handler.py   examines, decides, acts and records (in incidents/journal.py)
    open_incident.py      an incident while it is examined and handled

What that needs:

    steps_to_watch.py     which runs of a session are steps
    step_history.py       the last steps, and whether the next is a spike
    step_summaries.py     the same as scalars in TensorBoard
    recovery.py           back to a checkpoint: one process, or a job
    back_off.py           smaller updates after that
    preparation.py        what a new session needs for both, before its first step
    watchers.py           hands the hooks their training; picks the one that decides

The loops:

    fetch_structures.py   whatever a session is asked to fetch and feed; runs that come again
    prepared_runs.py      runs that come again, each kind prepared once
    hook_fetches.py       what hooks ask to be fetched and fed in a step
    watched_session.py    watch(), for a plain session
    slim_training.py      what a training in slim's loop has to be, and has around it
    loop.py               the step function and session wrapper for slim.learning.train
    supervisor.py         what that asks of its Supervisor
    step_runner.py        one step: in one run, or by the step function

Around a training:

    training.py           what is said of it; captures, signals, progress, the last save
    record_folder.py      where a hook keeps its record, and a session its checkpoints
    hook_loop.py          opens that in a loop that knows hooks only, in the session's directory
    stop_signals.py       SIGTERM and Ctrl-C end a training, with everything saved
    progress.py           the progress bar

The hook that users see is in :mod:`slimguard.hooks`.
"""
