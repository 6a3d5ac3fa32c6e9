"""What happened in a bad step, what to do about it, and its record. Does not deal with graphs.

The files:

    incident.py         Incident: what is known of a bad step
    spike.py            Spike: when a loss or a gradient norm is far above the usual one
    history.py          the last steps before an incident
    policies.py         Raise, Stop, Skip, Rollback: what may happen after an incident
    policy_language.py  reads what users write for on_nan, such as 'skip:5,rollback,raise'
    fallback_chain.py   policies in order: the first that applies takes an incident
    nan_loss_error.py   NanLossError, which ends a training with an incident
    advice.py           sentences that say what may help
    incident_log.py     writes an incident to the log, the record and TensorBoard
    record_file.py      the record, slimguard/incidents.jsonl: appends, reads and lists it
    incident_groups.py  groups incidents by cause
"""
