"""Guards code that nobody edits, by replacing the methods of TensorFlow that it calls.

The files:

    instrumentation.py           instrument(): begins, and ends
    patched_sessions.py          Session.run, guarded: each run that trains goes through a gate
    script_session.py            watches the steps of one session, and acts by policy
    train_steps.py               finds the runs that train, and makes them fetch through gates
    shared_updates.py            finds the fetched elements that train, and those that share a gate
    own_updates.py               guards other writes of computed values, in runs that do not train
    optimizer_notes.py           notes the losses, gradients and updates that a script makes
    script_files.py              notes where a script saves, and checks what it saves
    script_saves.py              a graph's checkpoints: saves another one, or restores one
    script_summaries.py          adds scalars of the steps to a script's summaries
    patches.py                   replaces methods of TensorFlow for a while
    run.py                       runs a script as python would, guarded, and the children it spawns
    ending.py                    what `run` prints at the end: what was guarded, and what happened
    tf1_names.py                 the names of TensorFlow 1, and of the numpy of its time
    tf1_table.py                 where TensorFlow 2 has these names, and what replaced missing ones
    moving_average_optimizer.py  tf.contrib.opt.MovingAverageOptimizer
"""
