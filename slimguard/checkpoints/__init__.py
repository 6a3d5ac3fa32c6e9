"""Checkpoints on disk that are whole and finite: reading, saving, going back, repairing.

The files:

    checkpoint_files.py   the files of a checkpoint, by their names
    state_file.py         TensorFlow's state file: what it means, and how it is written
    checkpoint_reader.py  which checkpoints are whole and finite
    finite_saver.py       a Saver that reads a checkpoint back before it publishes it, or refuses
    step_turn.py          turns between the loop's steps and threads that save
    restorers.py          save and restore the checkpoints of a live session, or its first state
    snapshots.py          states in memory to go back to, and which of them is trusted
    variables.py          the variables of a graph, their values, and how these are put back
    repair.py             makes the state file name the checkpoint that a restart resumes from
"""
