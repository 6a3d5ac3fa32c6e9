"""Lets the processes of one job agree: each learns what happens to the others.

The files:

    job.py            a process's part in a job, which it can end for all; explains how they agree
    chief.py          opens the rounds of a training
    follower.py       joins the rounds, as each worker but the chief does
    watch.py          stops a session when another process ended the job, or goes back
    session_end.py    how a session ends, and which errors lead to a new one
    waiting.py        waits for other processes
    job_table.py      the shared table, with one entry of each process, and this one's
    sync_replicas.py  the accumulators and tokens of a SyncReplicasOptimizer
"""
