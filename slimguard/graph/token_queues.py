"""What a `SyncReplicasOptimizer` hands out tokens with: their queue, and the chief's runner."""

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
    """The queue runners of a graph, those in no collection too.

    The one of a `SyncReplicasOptimizer` is its own, and nobody hands the optimizer out.
    """
    closing = [op for op in graph.get_operations() if op.type in _CLOSES]
    # What refers to an op is an object, or the dict of its attributes. Not `gc.get_objects`: to
    # have a tuple that another thread is just making keeps that thread from making it.
    holders = gc.get_referrers(*closing) if closing else []
    dicts = [holder for holder in holders if type(holder) is dict]
    things = [*holders, *(gc.get_referrers(*dicts) if dicts else ())]
    # The class of an object, not `isinstance`: that asks a proxy whose object may be gone.
    runners = [each for each in things if issubclass(type(each), tf1.train.QueueRunner)]
    return list({id(each): each for each in runners if each.close_op.graph is graph}.values())


def queue_of(runner: tf1.train.QueueRunner) -> tf.Operation:
    """The queue that a queue runner closes when it ends."""
    return runner.close_op.inputs[0].op
