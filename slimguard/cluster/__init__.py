"""Processes of one job that agree: what happens to one of them, the others hear of.

The files:

    job.py            the chief, its workers, and who watches whom
    job_table.py      a table on a parameter server with an entry of each process
    sync_replicas.py  what a SyncReplicasOptimizer keeps on the parameter servers
"""
