"""Loops: what runs a train op, what watches each step, and what ends a training.

What watches, in any loop:

    gate_watcher.py       GateWatcher, the hook behind NanLossHook
    watched_run.py        which runs are steps to watch, and what to fetch in them
    run_kinds.py          runs that come again: by what they fetch, and feed within the step
    incident_reading.py   an Incident from a gate's values, a loss, or a check that raised
    examiner.py           has bad steps examined, and their bundles written
    incident_handler.py   examines, decides, acts and records
    open_incident.py      an incident while it is handled
    second_look.py        whether variables are lost, or are just being put back
    recovery.py           back to a checkpoint: one process, or a job
    back_off.py           smaller updates after that
    watchers.py           hands them their training; picks the one that decides
    step_history.py       the last steps, and whether the next is a spike
    history_summaries.py  the same as scalars in TensorBoard
    checkpoint_dir.py     the directory that a session saves to

The loops:

    watched_session.py    watch(), for a plain session
    hooked_session.py     a session that calls hooks, and what these ask for in a run
    fetch_structures.py   whatever structure a session is asked to fetch
    prepared_runs.py      runs that come again, each kind prepared once
    gate_step.py          a step of a gate with all that its watchers look at, in one call
    loop.py               the step function and session wrapper for slim.learning.train
    supervisor.py         what that asks of its Supervisor
    trainable.py          what a train op and its graph have to be
    cell_advice.py        what to do where a cell of a notebook built them twice
    step_runner.py        one step: in one call, or by the step function

Around a training:

    training.py           what is said of it; captures, signals, progress, the last save
    hook_loop.py          opens that in a loop that knows hooks only
    stop_signals.py       SIGTERM and Ctrl-C end a training, with everything saved
    progress.py           the progress bar
    occupancy.py          whether another process trains in a logdir

The hook that users see is in :mod:`slimguard.hooks`.
"""
