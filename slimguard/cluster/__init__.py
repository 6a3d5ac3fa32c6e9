"""Lets the processes of one job agree: each learns what happens to the others.

The files:

    job.py            a process's part in a job, and what it hears; explains how they agree
    rounds.py         the chief opens the rounds of a training; the other workers join
    session_end.py    how a session ends, and which errors lead to a new one
    waiting.py        waits for other processes
    job_table.py      the shared table, with one entry of each process, and this one's
    sync_replicas.py  the accumulators and tokens of a SyncReplicasOptimizer
"""
