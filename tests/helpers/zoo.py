"""Small trainings that go bad, each for one known reason, and what a diagnosis has to say of it.

A comment ``# at fault`` marks the line at fault, so that a diagnosis can be checked against this
file. If the input is at fault, it may be a line of `batches`.
"""

from typing import Callable, Dict, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from slimguard import gate
from slimguard.diagnosis.capture import BadStep, Capture
from tests.helpers.gate_models import initialize, new_session

tf1 = tf.compat.v1

ROWS = 6


class Animal(NamedTuple):
    """A training, and what a diagnosis must find.

    Attributes:
      build: builds it; returns the loss, or the loss and an optimizer.
      says: words of the diagnosis.
      phase: the phase of the diagnosis.
      op_types: the types of op that may be named.
      rows: the rows of the batch that are bad, if the input is.
      steps: the most steps until one is bad.
      feed: returns the values to feed, by Tensors of the default graph; called in every step.
    """

    build: Callable
    says: str
    phase: str
    op_types: Sequence[str]
    rows: Sequence[int] = ()
    steps: int = 3
    feed: Optional[Callable[[int], dict]] = None


ZOO: Dict[str, Animal] = {}


def animal(**kwargs):
    def add(build):
        ZOO[build.__name__] = Animal(build, **kwargs)
        return build

    return add


def batches(make, bad_step: int = 1) -> tf.Tensor:
    """A float32 batch [ROWS, 4] from an iterator; `make` damages the batch of `bad_step`."""

    def generate():
        for step in range(10):
            batch = np.random.RandomState(step).uniform(0.1, 1.0, [ROWS, 4]).astype(np.float32)
            if step == bad_step:
                make(batch)
            yield batch

    dataset = tf.data.Dataset.from_generator(generate, tf.float32, [ROWS, 4])
    return tf1.data.make_initializable_iterator(dataset).get_next()  # at fault: an iterator


def nothing(batch):
    pass


def put(value, *place):
    def make(batch):
        batch[place] = value

    return make


def weights(shape=(4, 3), value=0.5, dtype=tf.float32):
    start = np.full(shape, value)
    return tf1.get_variable('w', initializer=tf.constant(start, dtype), use_resource=True)


def regression(outputs):
    return tf.reduce_mean(tf.square(outputs - 1.0))


@animal(says='log of 0 (1 of 24 values)', phase='forward', op_types=['Log'])
def log_of_zero():
    x = batches(put(0.0, 2, 1))
    features = tf.math.log(x)  # at fault
    return regression(tf.matmul(features, weights()))


@animal(says='division by 0', phase='forward', op_types=['RealDiv'])
def division_by_zero():
    x = batches(put(0.0, slice(3, 4)))
    share = x / tf.reduce_sum(x, axis=1, keepdims=True)  # at fault
    return regression(tf.matmul(share, weights()))


@animal(says='gradient of sqrt at 0', phase='backward', op_types=['SqrtGrad'])
def gradient_of_sqrt():
    x = batches(put(0.0, 4))
    length = tf.sqrt(tf.reduce_sum(tf.square(tf.matmul(x, weights())), axis=1))  # at fault
    return regression(length)


@animal(says='overflow of exp', phase='forward', op_types=['Exp'])
def overflow_of_exp():
    x = batches(put(500.0, 1, 1))
    return regression(tf.exp(tf.matmul(x, weights())))  # at fault


@animal(says='overflow of float16', phase='forward', op_types=['Square'])
def overflow_of_float16():
    x = tf.cast(batches(put(3000.0, 5)), tf.float16)
    outputs = tf.matmul(x, weights(dtype=tf.float16))
    return tf.reduce_mean(tf.square(outputs))  # at fault


@animal(says='overflow of float16', phase='forward', op_types=['Cast'])
def cast_to_float16():
    x = tf.cast(batches(put(1e6, 5, 0)), tf.float16)  # at fault
    return regression(tf.matmul(x, weights(dtype=tf.float16)))


@animal(says='mean of an empty tensor', phase='forward', op_types=['Mean'])
def mean_of_nothing():
    x = batches(put(0.0, slice(None)))
    chosen = tf.boolean_mask(tf.matmul(x, weights()), tf.greater(x[:, 0], 0.0))
    return tf.reduce_mean(tf.square(chosen))  # at fault


@animal(says='The weights are as large as', phase='forward', op_types=['Square'], steps=10)
def learning_rate_too_large():
    outputs = tf.matmul(batches(nothing), weights())
    loss = tf.reduce_mean(tf.square(outputs - 1.0))  # at fault
    return loss, tf1.train.GradientDescentOptimizer(1e12)


@animal(says='would not be finite after', phase='update', op_types=['ResourceApplyGradientDescent'])
def update_overflows():
    outputs = tf.matmul(batches(put(1e4, slice(None)), bad_step=0), weights())
    loss = tf.reduce_mean(outputs)
    return loss, lambda: tf1.train.GradientDescentOptimizer(1e38).minimize(loss)  # at fault


@animal(says='its square is not', phase='backward', op_types=['MatMul'])
def gradient_too_large_to_be_squared():
    outputs = tf.matmul(batches(put(1e21, 0, 0)), weights())  # at fault
    return tf.reduce_mean(tf.tanh(outputs * 1e-21)) * 1e21, tf1.train.AdamOptimizer()


@animal(
    says='1 NaN among 24 values, in row 5', phase='input', op_types=['IteratorGetNext'], rows=[5]
)
def a_pixel_that_relu_swallows():
    hidden = tf.nn.relu(tf.matmul(batches(put(np.nan, 5, 2)), weights()))
    # The loss does not show the NaN, whether ReLU keeps it or not.
    return regression(tf.where(tf.math.is_nan(hidden), tf.zeros_like(hidden), hidden))


@animal(says='1 Inf among 6 values, in row 2', phase='input', op_types=['PyFunc'], rows=[2])
def a_label():
    counter = iter(range(100))

    def draw():
        labels = np.ones([ROWS], np.float32)
        labels[2] = np.inf if next(counter) == 1 else 1
        return labels

    labels = tf1.py_func(draw, [], tf.float32)  # at fault
    labels.set_shape([ROWS])
    outputs = tf.matmul(batches(nothing), weights([4, 1]))[:, 0]
    return tf.reduce_mean(tf.abs(outputs - labels))


@animal(says='in row 1', phase='input', op_types=['QueueDequeueManyV2'], rows=[1])
def a_row_in_a_queue():
    rows = np.ones([20 * ROWS, 4], np.float32)
    rows[ROWS + 1, 3] = np.nan
    queue = tf.queue.FIFOQueue(1000, [tf.float32], [[4]])
    tf1.add_to_collection('start', queue.enqueue_many([rows]))
    x = queue.dequeue_many(ROWS)  # at fault
    return regression(tf.matmul(x, weights()))


@animal(says='gradient of log at 0', phase='backward', op_types=['Reciprocal', 'Inv'])
def only_in_the_backward_pass():
    outputs = tf.matmul(batches(put(0.0, 3)), weights())
    logs = tf.math.log(outputs)  # at fault
    # The loss leaves out the bad logarithms, so it is finite. Their gradient is 0 times infinity.
    return tf.reduce_mean(tf.where(outputs > 0, logs, tf.zeros_like(logs)))


@animal(says='somewhere in', phase='forward', op_types=['Exit', 'While', 'StatelessWhile'])
def inside_a_loop():
    x = batches(put(0.0, 2, 2))
    w = weights()

    def body(i, total):
        return i + 1, total + tf.math.log(x) * tf.reduce_sum(w)

    _, total = tf1.while_loop(lambda i, _: i < 3, body, [0, tf.zeros_like(x)])  # at fault
    return regression(total)


@animal(says='log of 0', phase='forward', op_types=['Log'], steps=40)
def dropout_decides():
    kept = tf1.nn.dropout(batches_without_end(), rate=0.25)
    total = tf.reduce_sum(kept * weights([1, 2]), axis=1)
    return tf.reduce_mean(tf.math.log(total))  # at fault


def batches_without_end():
    batch = np.full([2, 2], 0.5, np.float32)
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    return tf1.data.make_initializable_iterator(dataset).get_next()


def feed_of(step):
    x = np.ones([ROWS, 4], np.float32)
    if step == 1:
        x[0, 0], x[3, 1] = -np.inf, np.nan
    return {'images:0': x, 'keep:0': 0.5}


@animal(says='1 NaN and 1 Inf', phase='input', op_types=['Placeholder'], rows=[0, 3], feed=feed_of)
def a_feed():
    x = tf1.placeholder(tf.float32, [None, 4], name='images')  # at fault
    keep = tf1.placeholder(tf.float32, [], name='keep')
    return regression(tf.matmul(x * keep, weights()))


@animal(says='sqrt of a negative number', phase='forward', op_types=['Sqrt'])
def sqrt_of_a_negative_number():
    x = batches(put(-1.0, 0, 1))
    return regression(tf.matmul(tf.sqrt(x), weights()))  # at fault


class Failed:
    """A guarded training whose last step was bad.

    Attributes:
      session, capture, gate: those of the training, on a finalized graph.
      labels: the labels of what the gate found.
      values: the values that the step drew.
      bad_step: all of these.
      loss: the value of the loss.
      steps: how many good steps came before.
    """

    def __init__(self, loss, train=None, steps=3, feed=None, **kwargs):
        step = tf1.train.get_or_create_global_step()
        if train is None:
            train = tf1.train.GradientDescentOptimizer(0.01)
        train_op = train() if callable(train) else train.minimize(loss, step)
        self.gate = gate.gate_of(gate.guard(train_op, loss, **kwargs))
        self.capture = Capture(self.gate)
        self.session = new_session()
        initialize(self.session)
        graph = loss.graph
        self.session.run(tf1.get_collection('start'))
        self.session.run([op for op in graph.get_operations() if op.type == 'MakeIterator'])
        graph.finalize()
        for self.steps in range(steps):
            fed = dict(feed(self.steps) if feed else {})
            fed[self.gate.watched] = True
            fetches = [self.gate.written, self.gate.bad, loss, self.capture.row]
            written, bad, self.loss, _ = self.session.run(fetches, fed)
            if not written:
                break
        assert not written, 'no step was bad'
        self.labels = [label for label, is_bad in zip(self.gate.labels, bad) if is_bad]
        self.values = self.capture.take(self.session)
        self.bad_step = BadStep(self.session, self.capture, self.values, self.labels)

    def state(self):
        """The bytes of every variable of the step."""
        values = self.session.run(self.capture.reads)
        return {name: np.asarray(value).tobytes() for name, value in values.items()}


def failed(name: str) -> Failed:
    """A training of the zoo after its first bad step."""
    it = ZOO[name]
    built = it.build()
    loss, train = built if isinstance(built, tuple) else (built, None)
    return Failed(loss, train, it.steps, it.feed)
