"""Loops: they run a train op, watch each step, and end a training.

The path of a bad step, from the run of the train op to the line in the log. SlimLoop.step
(slim_loop.py), a watched session (watch.py) or a script's session calls HookedStep.run with a step;
in a `MonitoredSession`, TensorFlow calls the hook's `before_run` and `after_run` in its place.

    1. HookedStep.run (hooked_session.py) asks the hooks what to feed. slimguard's own hook is a
       GateWatcher (gate_watcher.py), which answers in `ask`. What to fetch in each kind of run is
       determined once (WatchedRuns.run_for in watched_runs.py).
    2. PreparedRuns.run (prepared_runs.py) runs the session. In the graph, the gate checks the
       values and keeps the variables as they were (gate/building/builder.py), and stores a report
       of what is bad (`Untold` in gate/building/announcement.py).
    3. GateWatcher.take_values gets the values, and Run.read (watched_runs.py) opens an
       OpenIncident if the values or the report show a bad step. StepHistory.note_bad
       (step_history.py) adds the last steps and, for a finite number that is too large, its limit.
       Each later part adds what it found or did.
    4. GateWatcher.handle lists the incident, and IncidentHandler.handle (incident_handler.py) does
       the rest, in this order:
       - judges from the last losses whether the weights are ruined (checkpoints/snapshots.py)
       - asks FallbackChain.foresee (incidents/fallback_chain.py) which policy applies if the cause
         stays unknown
       - calls Evidence (diagnosis/evidence.py) to search for the cause, at least as far as that
         policy needs it
       - decides: FallbackChain.decide; Evidence.keep writes the bundle
       - acts: skips, Rollbacks.roll_back, raises NanLossError, asks the loop to stop, or calls the
         user's `on_nan_loss`
       - records, also if the act raised: IncidentLog.record (incidents/incident_log.py) has
         record_file.py append the incident, and logs its line

If a check in the model itself, such as `check_numerics`, raises in step 2, `of_error`
(open_incident.py) opens an incident from its error, and step 4 follows.

The watch:

    hooked_session.py     runs a step with hooks, as a MonitoredSession does
    hook_calls.py         calls the user's hooks around a run, and checks what they fetch
    fetch_structures.py   structures of fetches and feeds; caches results by kind of run
    prepared_runs.py      prepares each kind of `session.run` once, and repeats it
    gate_watcher.py       the hook that watches the gates of a graph
    watched_runs.py       which runs are steps, and which incidents their values show
    step_history.py       the numbers of the last steps: to judge the next step, and for TensorBoard

After a bad step:

    open_incident.py      OpenIncident: a bad step until its line is in the record
    incident_handler.py   examines, decides, acts, records
    rollback.py           carries out the policy Rollback: chooses a state and restores it
    learning_rate_factor.py  the factor of the learning rates after rollbacks, kept for a restart

The loops:

    watch.py              watch(), for a plain session
    slim_training.py      train(): checks its arguments, opens the training, runs slim's loop
    slim_loop.py          the step function and session wrapper for slim.learning.train
    hook_loop.py          opens a training if there is only a hook; finds the folder of its record

Around a training:

    training.py           Training: has the settings, captures bad steps, saves before an error
    stop_signals.py       SIGTERM and Ctrl-C end a training, with everything saved
    progress.py           the progress bar

The hook that users see is in :mod:`slimguard.hooks`.
"""
