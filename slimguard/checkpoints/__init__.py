"""Checkpoints on disk that are whole and finite: reading, saving, going back, repairing.

The files:

    checkpoint_files.py   the files of a checkpoint, by their names
    state_file.py         TensorFlow's state file: what it means, and how it is written
    checkpoint_reader.py  which checkpoints are whole and finite
    finite_saver.py       a Saver that refuses to save a checkpoint that is not finite
    checked_save.py       its save op, behind a check of every float
    saving_session.py     the session that runs this op, and refuses values that are not finite
    step_turn.py          turns between the loop's steps and threads that save
    spare.py              the spare copy of a checkpoint that is saved again
    save_room.py          what a save leaves on a full disk
    rollback.py           restores the newest good checkpoint in a live session
    first_state.py        the state before the first step, in memory
    snapshots.py          states between checkpoints to go back to, and which of them is trusted
    kept_by_steps.py      which snapshots are kept: by the count of steps
    snapshot_values.py    reads the values of variables, and puts them back
    unlisted.py           reads and assigns variables that no collection lists
    repair.py             makes the state file name the newest good checkpoint
    restart.py            what a restart will do: the command `checkpoints`
"""
