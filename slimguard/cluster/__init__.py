"""Coordinates the processes of one job: each learns what happens to the others.

The files:

    job.py            a process's part in a job; explains how the processes agree
    rounds.py         the chief opens the rounds of a training; the other workers wait, and join
    session_end.py    how a session ends, and which errors lead to a new one
    job_table.py      the shared table, the entry of this process in it, and how one waits for it
    sync_replicas.py  the accumulators and tokens of a SyncReplicasOptimizer
"""
