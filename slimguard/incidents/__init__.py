"""What happened in a bad step, what to do about it, and the record of it. Knows no graphs.

The files:

    incident.py       Incident, and NanLossError, which ends a training with one
    policies.py       Raise, Stop, Skip, Rollback, and chains of them
    journal.py        where a training's incidents go: the log, the record, TensorBoard
    record_file.py    the record, slimguard/incidents.jsonl: trainings append to it
    record_line.py    an incident as one line of it
    record_reader.py  reads it, whatever has become of it
    record_table.py   shows it to people
"""
