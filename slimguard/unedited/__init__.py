"""Code that nobody edits: what it calls is replaced by what is guarded.

The files:

    instrumentation.py           instrument(): puts guarded functions in the place of slim's
    guarded_sessions.py          Session.run, guarded: each run that trains goes through a gate
    script_session.py            a session with what watches it, and the steps it knows
    train_steps.py               which runs train, and what stands in for what they fetch
    shared_updates.py            what of a run trains, and what needs the same updates
    gradient_writes.py           updates that the script writes itself, of gradients
    own_updates.py               updates that it makes of anything else, in runs of their own
    own_runs.py                  what their variables hold ahead of such a run
    refusals.py                  what is said once of what cannot be guarded
    script_watcher.py            what watches such a session, and acts by policy
    script_files.py              what a script saves, and where, as it tells TensorFlow
    script_saves.py              a graph's checkpoints: one more, or back to one of them
    good_checkpoints.py          what it resumes from is a good checkpoint
    script_folders.py            which of its folders is which graph's
    script_summaries.py          scalars where a script writes summaries
    optimizer_notes.py           what the optimizers of a script make
    numeric_checks.py            tf.add_check_numerics_ops leaves out what guards a script
    patches.py                   methods of TensorFlow, replaced for a while
    run_options.py               the options of `run`, and what they do to a process
    children.py                  processes that multiprocessing spawns are guarded, too
    ending.py                    what `run` says at the end
    tf1_names.py                 the names of TensorFlow 1, for scripts on TensorFlow 2
    tf1_table.py                 where they are today
    tf1_gone.py                  what is gone of them, and what replaced it
    moving_average_optimizer.py  tf.contrib.opt.MovingAverageOptimizer
    numpy1_names.py              the names that numpy has dropped
    run.py                       runs a script as python would
"""
