"""What happened in a bad step, what to do about it, and the record of it. Knows no graphs.

The files:

    incident.py         Incident: what is known of a bad step
    spike.py            Spike: when a finite step is far out of what the last good ones were
    history.py          the last steps before an incident
    policies.py         Raise, Stop, Skip, Rollback: what may happen after it
    policy_language.py  what users write for on_nan, and the policies it stands for
    fallback_chain.py   policies in order: the first that is willing takes an incident
    nan_loss_error.py   NanLossError, which ends a training with an incident
    advice.py           what may help after it
    journal.py          a training's incidents: the line in the log, the record, TensorBoard
    record_file.py      the record, slimguard/incidents.jsonl: written, and read
    incident_groups.py  incidents of one cause, together
    record_table.py     shows the record to people
"""
