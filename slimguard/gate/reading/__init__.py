"""Reads the graph of a train op, and plans its gate. Adds nothing to the graph.

Which variables a step writes is found by slimguard/graph/written_variables.py.

The files:
    plan.py               what a train op consists of, and what has to happen to each part
    step_graph.py         the ops of a step, with originals instead of guarded train ops
    gated_ops.py          which ops of a step are gated
    batch_counters.py     which variables pick the batch, and so are not restored
    losses.py             which scalars are losses
    checked_values.py     the values to check before the update
    kernels.py            when an optimizer's kernel turns small numbers into finite ones
    late_writes.py        which values computed after a gated write are known to be finite
"""
