"""Finds out whether the ranks of Horovod or of TensorFlow share a step: :func:`ranks_of`.

It reads the graph, and asks the library that the graph's collectives belong to.
"""

import collections
import json
import os
import re
import sys
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.building.ranks import Checks, Ranks
from slimguard.gate.reading.step_graph import StepGraph
from slimguard.graph import OURS, op_of
from slimguard.graph.collectives import collectives_in
from slimguard.graph.sessions import OWN_WORK
from slimguard.system.log import log


def ranks_of(step: StepGraph) -> Ranks:
    """The ranks that run a step together; this process alone if the step has no collective.

    Raises:
      ValueError: if a collective is of a library that is not imported.
    """
    nodes = collectives_in(step.order, step.writes)
    for types, make in LIBRARIES.items():
        ours = [node for node in nodes if re.match(types, node.op)]
        ranks = make(step, ours) if ours else None
        if ranks is not None:
            checks = graphs.kept_on(step.graph, 'checks', Checks)
            return ranks._replace(checks=checks, train_op=op_of(step.train_op).name)
    return Ranks()


def _of_horovod(step: StepGraph, nodes: Sequence[Any]) -> Optional[Ranks]:
    hvd: Any = sys.modules.get('horovod.tensorflow')
    if hvd is None:
        raise ValueError(
            'cannot guard: train op %r has %s %r in it, and horovod.tensorflow is not imported; '
            'import it and call hvd.init() first' % (step.train_op.name, nodes[0].op, nodes[0].name)
        )
    if hvd.size() == 1:
        return None
    sets = {node.attr['process_set_id'].i for node in nodes if 'process_set_id' in node.attr}
    if sets - {0}:
        _warn(step, 'it uses process sets of Horovod')
        return None

    def add(vector: tf.Tensor, name: str) -> tf.Tensor:
        # Horovod matches the ops of ranks by name. In a scope named for the train op, the names are
        # the same even if one rank guards more train ops than another.
        with tf1.name_scope('%sranks/%s/' % (OURS, op_of(step.train_op).name)):
            return hvd.allreduce(tf.identity(vector, name), op=hvd.Sum)

    def exchange(subject: str, text: str) -> List[str]:
        # A step that occupies all threads may call this, so this session has its own threads.
        config = tf1.ConfigProto(device_count={'GPU': 0}, use_per_session_threads=True)
        with OWN_WORK, tf.Graph().as_default(), tf1.Session(config=config) as session:
            return hvd.allgather_object(text, session, OURS + subject)

    return Ranks(hvd.rank(), hvd.size(), add, exchange)


class _Group(NamedTuple):
    """The keys and the group size of a collective op of TensorFlow; None if one is no constant."""

    key: Optional[int]
    instance: Optional[int]
    size: Optional[int]


def _group_of(reduce: tf.Operation) -> _Group:
    if reduce.type == 'CollectiveReduce':
        return _Group(*map(reduce.get_attr, ('group_key', 'instance_key', 'group_size')))
    size, key, instance = (
        value if value is None else int(value)
        for value in map(graphs.constant_scalar, reduce.inputs[1:4])
    )
    return _Group(key, instance, size)


def _of_tensorflow(step: StepGraph, nodes: Sequence[Any]) -> Optional[Ranks]:
    """The workers of a strategy as ranks; each has one device and its own copy of this graph."""
    reduces = [op for op in step.order if op.type in ('CollectiveReduce', 'CollectiveReduceV2')]
    groups = list(map(_group_of, reduces))
    here = collections.Counter((group.key, group.instance) for group in groups)
    sizes = {group.size for group in groups}
    if reduces and sizes == set(here.values()):
        return None  # all members are devices of this graph
    workers = _workers()
    if not reduces and len(workers) < 2:
        return None
    like = reduces[0] if reduces else None
    me = tf1.DeviceSpec.from_string(like.device if like is not None else '')
    is_one_each = set(here.values()) == {1} and sizes == {len(workers)}
    if like is None or not is_one_each or (me.job, me.task) not in workers:
        _warn(step, 'its collectives are not one CollectiveReduce for each worker of TF_CONFIG')
        return None
    reduce: tf.Operation = like

    def add(vector: tf.Tensor, name: str) -> tf.Tensor:
        # A key that is the same on all workers, and far above the keys that TensorFlow counts up.
        key = zlib.crc32(('%s %s' % (op_of(step.train_op).name, name)).encode()) >> 2 | 1 << 29
        same = {'input': vector, 'merge_op': 'Add', 'final_op': 'Id', 'name': name}
        with tf.device(reduce.device):
            if reduce.type == 'CollectiveReduce':
                return tf.raw_ops.CollectiveReduce(
                    group_size=reduce.get_attr('group_size'),
                    group_key=reduce.get_attr('group_key'),
                    instance_key=key,
                    subdiv_offsets=[0],
                    **same,
                )
            size, group = reduce.inputs[1:3]
            return tf.raw_ops.CollectiveReduceV2(
                group_size=size, group_key=group, instance_key=key, ordering_token=[], **same
            )

    return Ranks(workers.index((me.job, me.task)), len(workers), add)


def _workers() -> List[Tuple[str, int]]:
    """The job and task of each worker of a cluster, the chief first, as TF_CONFIG says."""
    try:
        cluster = json.loads(os.environ.get('TF_CONFIG', '{}')).get('cluster', {})
    except ValueError:
        return []
    jobs = ('chief', 'master', 'worker')
    return [(job, task) for job in jobs for task in range(len(cluster.get(job, ())))]


def _warn(step: StepGraph, why: str) -> None:
    log().warning(
        'the steps of train op %r are shared by several processes, and each decides for '
        'itself whether a step is bad: %s.',
        step.train_op.name,
        why,
    )


# The functions that find the ranks, by the types of their library's ops.
LIBRARIES: Dict[str, Callable[[StepGraph, Sequence[Any]], Optional[Ranks]]] = {
    'Horovod': _of_horovod,
    'Collective': _of_tensorflow,
}
