"""Reads and edits a `tf.Graph`; does not use gates.

    walk.py          an op's declaration, and the ops that must run before it
    variables.py     variables, by reference and by resource handle
    written_variables.py  what ops write, and with which values
    collectives.py   ops that several processes run together
    control_flow.py  conditions and loops around an op
    source_lines.py  which line of the user's code made an op
    devices.py       the device for an op that serves another
    ops.py           creates ops: in our scope, on the device of another op, or as a copy
    sessions.py      the sessions on a graph, and a wrapper that stands in for one
    kept.py          values of ours that are kept on a graph or a session
    single_runs.py   slimguard's own runs: those made once or seldom, and with fixed fetches
    token_queues.py  the queue and the runner that synchronous workers wait for

Only `ops` adds ops to a graph; `single_runs` adds the tensor that it feeds. The names exported
below only read a graph.
"""

from slimguard.graph.control_flow import (
    context_of,
    flow_around,
    is_seen_from,
    loop_around,
    loop_around_output,
    outermost_context,
)
from slimguard.graph.kept import kept_already, kept_on
from slimguard.graph.sessions import open_sessions
from slimguard.graph.variables import (
    READS,
    VARIABLES,
    device_of,
    dtype_of,
    global_step,
    is_float_variable,
    is_resource,
    is_variable_read,
    local_in,
    note_counter,
    on_each_device,
    trainable_in,
    variable_behind,
    variable_read,
)
from slimguard.graph.walk import (
    OURS,
    TrainOp,
    ancestors,
    ancestors_beyond,
    arguments_of,
    constant_scalar,
    controls_of,
    is_enqueue,
    is_float,
    is_random,
    is_reference,
    is_stateful,
    key,
    largest_constant,
    lowest_constant,
    makers_of,
    needs,
    op_def_of_type,
    op_of,
    takes_reference,
)
from slimguard.graph.written_variables import (
    CALLS,
    Writes,
    changes_value,
    is_accumulator,
    is_apply,
    squares_gradient,
    values_of,
)

__all__ = [
    'CALLS',
    'OURS',
    'READS',
    'VARIABLES',
    'TrainOp',
    'Writes',
    'ancestors',
    'ancestors_beyond',
    'arguments_of',
    'changes_value',
    'constant_scalar',
    'context_of',
    'controls_of',
    'device_of',
    'dtype_of',
    'flow_around',
    'global_step',
    'is_accumulator',
    'is_apply',
    'is_enqueue',
    'is_float',
    'is_float_variable',
    'is_random',
    'is_reference',
    'is_resource',
    'is_seen_from',
    'is_stateful',
    'is_variable_read',
    'kept_already',
    'kept_on',
    'key',
    'largest_constant',
    'local_in',
    'loop_around',
    'loop_around_output',
    'lowest_constant',
    'makers_of',
    'needs',
    'note_counter',
    'on_each_device',
    'op_def_of_type',
    'op_of',
    'open_sessions',
    'outermost_context',
    'squares_gradient',
    'takes_reference',
    'trainable_in',
    'values_of',
    'variable_behind',
    'variable_read',
]
