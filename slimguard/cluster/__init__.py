"""Processes of one job that agree: what happens to one of them, the others hear of.

The files:

    job.py            a process's part in a job, and how it ends it for all; says how they agree
    chief.py          opens the rounds of a training
    follower.py       joins them, as each worker but the chief does
    watch.py          hears that another process ended the job, or goes back, and stops
    session_end.py    how a session ends, and what leads to a new one
    waiting.py        waits for other processes
    place.py          where a process stands
    own_entry.py      what a process says of itself
    job_table.py      the shared table, where each says it
    sync_replicas.py  what a SyncReplicasOptimizer keeps on the parameter servers
"""
