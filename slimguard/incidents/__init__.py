"""What happened in a bad step, what to do about it, and the record of it. Knows no graphs.

The files:

    incident.py       Incident, and NanLossError, which ends a training with one
    policies.py       Raise, Stop, Skip, Rollback, and chains of them
    journal.py        tells of a training's incidents: the line in the log, the record, TensorBoard
    record_file.py    the record, slimguard/incidents.jsonl: trainings append to it
    record_json.py    an incident as one line of it
    record_reader.py  reads its lines, whatever has become of them
    incident_groups.py  incidents of one reason, together
    record_table.py   shows the record to people
"""
