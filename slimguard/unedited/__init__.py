"""Code that nobody edits: what it calls is replaced by what is guarded.

The files:

    instrumentation.py           instrument(): begins, and ends
    patched_sessions.py          Session.run, guarded: each run that trains goes through a gate
    script_session.py            what watches a session, acts by policy, and the steps it knows
    train_steps.py               which runs train, and what stands in for what they fetch
    shared_updates.py            what of a run trains, and which of it goes through one gate
    own_updates.py               updates that it makes of anything else, in runs of their own
    optimizer_notes.py           what the optimizers of a script make; its own writes of gradients
    script_files.py              what a script saves, and where, as it tells TensorFlow
    script_saves.py              a graph's checkpoints: one more, or back to one of them
    script_summaries.py          scalars where a script writes summaries
    patches.py                   methods of TensorFlow, replaced for a while
    run.py                       runs a script as python would, guarded, and the children it spawns
    ending.py                    what became of the trainings: what `run` says at the end
    tf1_names.py                 the names of TensorFlow 1, and of the numpy of its time
    tf1_table.py                 where they are today, and what replaced those that are gone
    moving_average_optimizer.py  tf.contrib.opt.MovingAverageOptimizer
"""
