"""Loops: what runs a train op, what watches each step, and what ends a training.

The way of a bad step, from the run of the train op to the line in the log. The part after the run
is the same in every loop; a `MonitoredSession` asks and tells the hook itself.

    1. HookedStep.run (hooked_session.py) asks the hooks what to fetch. That of slimguard is a
       GateWatcher (gate_watcher.py): `ask`.
    2. PreparedRuns.run (prepared_runs.py) runs the session. In the graph, the gate checks the
       values and keeps the variables as they were (gate/building/builder.py), and leaves word of
       what is bad (`Untold` in gate/building/announcement.py).
    3. GateWatcher.take_values gets the values, and Run.read (watched_runs.py) opens an
       OpenIncident if they or that word show one. Its reason says how far above its limits the step
       is (StepHistory.note_bad in step_history.py). Each later part notes in it what it found or
       did.
    4. IncidentHandler.handle (incident_handler.py) does the rest, in this order:
       - asks the FallbackChain (incidents/fallback_chain.py) which policy it would take if no more
         were found: `foresee`
       - has Evidence (diagnosis/evidence.py) search the cause, as far as that policy asks
       - decides: FallbackChain.decide; Evidence.keep writes the bundle
       - acts: Rollbacks.roll_back, raise NanLossError, or ask the loop to stop
       - records: IncidentLog.record (incidents/incident_log.py) has record_file.py append it, and
         logs its line

The watch:

    hooked_session.py     runs a step with hooks, as a MonitoredSession does
    hook_calls.py         calls the user's hooks around a run, and checks what they fetch
    fetch_structures.py   whatever a session is asked to fetch and feed; runs that come again
    prepared_runs.py      runs that come again, each kind prepared once
    gate_watcher.py       the hook that watches the gates of a graph
    watched_runs.py       which runs are steps, and what their values show
    step_history.py       the numbers of the last steps: to judge the next, and for TensorBoard

After a bad step:

    open_incident.py      OpenIncident: the bad step, from then to its line in the record
    incident_handler.py   examines, decides, acts, records
    rollback.py           the policy Rollback: which state to go back to, and going there
    learning_rate_factor.py  the factor of the learning rates after that, kept for a restart

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
