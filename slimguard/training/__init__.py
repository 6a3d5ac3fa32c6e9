"""Loops: what runs a train op, what watches each step, and what ends a training.

The way of a bad step, in any loop. In a `MonitoredSession` it begins at the second file.

    hooked_session.py     HookedStep.run: asks the hooks what to fetch, runs the step, tells them
    gate_watcher.py       GateWatcher.take, of the hook behind NanLossHook: gets the values
    watched_runs.py       Run.read: opens an incident if they show one
    open_incident.py      OpenIncident: the bad step, from then to its line in the record
    incident_handler.py   IncidentHandler.handle calls, in this order:
                          1. examine: Evidence.examine (diagnosis/evidence.py)
                          2. decide: FallbackChain.decide (incidents/fallback_chain.py), and
                             Evidence.keep, which writes the bundle
                          3. act: Recovery.go_back, raise NanLossError, or ask to stop
                          4. record: Journal.record (incidents/journal.py), for record and log

What that needs:

    step_history.py       the numbers of the last steps: to judge the next, and for TensorBoard
    recovery.py           the policy Rollback: which state to go back to, and going there
    learning_rate_factor.py  the factor of the learning rates after that, kept for a restart
    hook_calls.py         calls the user's hooks around a run, and checks what they fetch
    fetch_structures.py   whatever a session is asked to fetch and feed; runs that come again
    prepared_runs.py      runs that come again, each kind prepared once

The loops:

    watch.py              watch(), for a plain session
    slim_training.py      train(): checks what it is given, opens the training, runs slim's loop
    slim_loop.py          the step function and session wrapper for slim.learning.train
    hook_loop.py          a loop that knows hooks only, and where its record is

Around a training:

    training.py           its settings; captures bad steps, and saves before an error ends it
    stop_signals.py       SIGTERM and Ctrl-C end a training, with everything saved
    progress.py           the progress bar

The hook that users see is in :mod:`slimguard.hooks`.
"""
