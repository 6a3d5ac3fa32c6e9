"""What happened in a bad step, what to do about it, and the record of it. Knows no graphs.

The files:

    incident.py  Incident, and NanLossError, which ends a training with one
    policies.py  Raise, Stop, Skip, Rollback, and chains of them
    journal.py   the record: log lines, slimguard/incidents.jsonl, TensorBoard
"""
