"""What happened in a bad step, what to do about it, and the record of it. Knows no graphs.

The files:

    incident.py       Incident, and NanLossError, which ends a training with one
    policies.py       Raise, Stop, Skip, Rollback: what may happen after it
    policy_language.py  what users write for on_nan, and the policies it stands for
    fallback_chain.py   policies in order: the first that is willing takes an incident
    journal.py        tells of a training's incidents: the line in the log, the record, TensorBoard
    record_file.py    the record, slimguard/incidents.jsonl: trainings append to it
    record_json.py    an incident as one line of it
    record_reader.py  reads its lines, whatever has become of them
    incident_groups.py  incidents of one reason, together
    record_table.py   shows the record to people
"""
