"""The token queue of a `SyncReplicasOptimizer`, and the chief's queue runner, which fills it."""

import gc
from typing import List

import tensorflow as tf
import tensorflow.compat.v1 as tf1

_QUEUES = frozenset(['FIFOQueue', 'FIFOQueueV2'])
_CLOSES = frozenset(['QueueClose', 'QueueCloseV2'])
# TensorFlow's name for the queue of tokens.
_TOKENS = b'sync_token_q'


def is_token_queue(op: tf.Operation) -> bool:
    """Whether `op` is the queue that synchronous workers wait at."""
    return op.type in _QUEUES and op.get_attr('shared_name') == _TOKENS


def has_token_queue(graph: tf.Graph) -> bool:
    return any(is_token_queue(op) for op in graph.get_operations())


def queue_runners_in(graph: tf.Graph) -> List[tf1.train.QueueRunner]:
    """The queue runners of a graph, also those that are in no collection.

    A `SyncReplicasOptimizer` keeps its queue runner private, and no public name leads to it.
    """
    closing = [op for op in graph.get_operations() if op.type in _CLOSES]
    # An object refers to an op, or the dict of its attributes does. Not `gc.get_objects`: it also
    # returns tuples that another thread is just filling, and that thread fails if we hold one.
    holders = gc.get_referrers(*closing) if closing else []
    dicts = [holder for holder in holders if type(holder) is dict]
    things = [*holders, *(gc.get_referrers(*dicts) if dicts else ())]
    # By `type`: `isinstance` of a weak proxy fails once its object was freed.
    runners = [each for each in things if issubclass(type(each), tf1.train.QueueRunner)]
    return list({id(each): each for each in runners if each.close_op.graph is graph}.values())


def queue_of(runner: tf1.train.QueueRunner) -> tf.Operation:
    """The queue that a queue runner closes when it ends."""
    return runner.close_op.inputs[0].op
