"""Checkpoints on disk that are whole and finite: reading, saving, going back, repairing.

The files:

    checkpoint_files.py   the files of a checkpoint, by their names
    state_file.py         TensorFlow's state file: what it means, and how it is written
    checkpoint_reader.py  which checkpoints are whole and finite
    finite_saver.py       a Saver that refuses to save any other
    checked_save.py       its save op, behind a check of every float
    step_turn.py          whose turn it is: the loop's, or of a thread that saves what it trains
    saving_session.py     the session that runs that op, and refuses what is not finite
    spare.py              the spare copy of a checkpoint that is saved again
    save_room.py          how much room a save takes, and what it leaves on a full disk
    rollback.py           restores the newest good one in a live session
    first_state.py        the state before the first step, in memory
    snapshots.py          states to go back to between them, and which of these is trusted
    kept_by_steps.py      which of them are kept: by the count of steps
    snapshot_values.py    the values of variables, read and put back
    unlisted.py           variables that no collection lists, read and given values as others are
    repair.py             makes the state file name the newest good one
    restart.py            what a restart will do: the command `checkpoints`
"""
