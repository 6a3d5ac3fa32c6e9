"""Ops that several processes run together: each process waits in them for all others."""

import re
from typing import Any, Iterable, List, Set

from slimguard.graph.written_variables import Writes

_TYPES = re.compile('Collective|Horovod|Nccl|.*AllReduce')


def is_collective(op_type: str) -> bool:
    """Whether ops of a type add up, gather or pass on the values of several processes."""
    return _TYPES.match(op_type) is not None


def collectives_in(ops: Iterable[Any], writes: Writes) -> List[Any]:
    """The NodeDefs of the collectives in `ops`, and in the functions that these ops call."""
    found: List[Any] = []
    seen: Set[str] = set()
    waiting: List[str] = []
    for op in ops:
        if is_collective(op.type):
            found.append(op.node_def)
        waiting.extend(writes.calls(op))
    while waiting:
        name = waiting.pop()
        function = None if name in seen else writes.function(name)
        seen.add(name)
        for node in function.node_def if function is not None else ():
            if is_collective(node.op):
                found.append(node)
            waiting.extend(writes.called_by(node))
    return found
