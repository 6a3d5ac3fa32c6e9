"""Small trainings to guard, and the checks that all tests of the gate make on them."""

import contextlib
import math
from typing import Callable, Dict, List

import numpy as np
import pytest
import tensorflow as tf

from slimguard import gate
from slimguard import graph as graphs
from slimguard.graph.single_runs import run_once

tf1 = tf.compat.v1

BAD = {'nan': math.nan, 'inf': math.inf, '-inf': -math.inf}

OPTIMIZERS = {
    'GradientDescent': lambda: tf1.train.GradientDescentOptimizer(0.1),
    'Momentum': lambda: tf1.train.MomentumOptimizer(0.01, 0.9),
    'Nesterov': lambda: tf1.train.MomentumOptimizer(0.01, 0.9, use_nesterov=True),
    # In 16 bits, the defaults of beta2 and epsilon round to 1 and to 0.
    'Adam': lambda: tf1.train.AdamOptimizer(0.1, beta2=0.9, epsilon=1e-3),
    'RMSProp': lambda: tf1.train.RMSPropOptimizer(0.1, momentum=0.5),
    'CenteredRMSProp': lambda: tf1.train.RMSPropOptimizer(0.01, centered=True, epsilon=1.0),
    'Adagrad': lambda: tf1.train.AdagradOptimizer(0.1),
    'AdagradDA': lambda: tf1.train.AdagradDAOptimizer(0.1, tf1.train.get_or_create_global_step()),
    'Adadelta': lambda: tf1.train.AdadeltaOptimizer(0.1),
    'Ftrl': lambda: tf1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    'ProximalGradientDescent': lambda: tf1.train.ProximalGradientDescentOptimizer(0.1, 0.01),
    'ProximalAdagrad': lambda: tf1.train.ProximalAdagradOptimizer(0.1, 0.1, 0.01),
}


class Damage:
    """Placeholders that add nothing to a model until a test feeds them.

    A model names a place that can be damaged by asking for its placeholder: `damage('loss')`.
    """

    def __init__(self):
        self.places: Dict[str, tf.Tensor] = {}

    def __call__(self, place: str, dtype=tf.float32) -> tf.Tensor:
        if place not in self.places:
            name = 'damage_' + place.replace(' ', '_')
            zero = tf.zeros([], dtype)
            self.places[place] = tf1.placeholder_with_default(zero, [], name=name)
        return self.places[place]

    def gradient(self, tensor: tf.Tensor, place: str = 'gradient') -> tf.Tensor:
        """`tensor`, with damage to its gradient and none to its value."""
        extra = self(place, tensor.dtype.base_dtype)

        @tf.custom_gradient
        def identity(x):
            return tf.identity(x), lambda dy: dy + extra

        return identity(tensor)


def new_session(**kwargs) -> tf1.Session:
    """A session in which two trainings of the same graph give the same bits."""
    config = tf1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, **kwargs
    )
    return tf1.Session(config=config)


def initialize(sess) -> None:
    """Initializes all variables, in a run without Grappler."""
    run_once(sess, [tf1.global_variables_initializer(), tf1.local_variables_initializer()])


def bits_of(values: Dict) -> Dict[str, bytes]:
    """The bits of fetched values, by name."""
    return {name: x if isinstance(x, bytes) else x.tobytes() for name, x in values.items()}


class Snapshot:
    """The bits of every variable of the default graph."""

    def __init__(self):
        variables = tf1.global_variables() + tf1.local_variables()
        self.reads = {v.name: v.value() for v in variables}
        self._floats = {name: x for name, x in self.reads.items() if graphs.is_float(x)}
        self._readers: Dict = {}

    def __call__(self, sess) -> Dict[str, bytes]:
        return bits_of(self._read(sess, self.reads))

    def not_finite(self, sess) -> List[str]:
        values = self._read(sess, self._floats)
        return [n for n, x in values.items() if not np.isfinite(x.astype(np.float64)).all()]

    def _read(self, sess, reads: Dict) -> Dict:
        """As `sess.run(reads)`, in half the time: the fetches are parsed only once."""
        if not reads:
            return {}
        key = sess, len(reads)
        if key not in self._readers:
            self._readers[key] = sess.make_callable(list(reads.values()))
        return dict(zip(reads, self._readers[key]()))


class Unguarded:
    """The training of the default graph as it is before anything is guarded.

    It runs in a copy of that graph: to copy it takes a fraction of the time of building it again.
    """

    def __init__(self, train_op):
        self._train_op = train_op.name
        self._init = tf.group(
            tf1.global_variables_initializer(), tf1.local_variables_initializer()
        ).name
        self._reads = {name: read.name for name, read in Snapshot().reads.items()}
        self._graph = tf1.get_default_graph().as_graph_def()

    def bits(self, feeds: List[Dict], of_last_alone: bool = False) -> List[Dict[str, bytes]]:
        """The bits of all variables after each step, or after the last alone.

        Args:
          feeds: for each step the values to feed, by name.
        """
        found = []
        with tf.Graph().as_default() as graph:
            tf1.import_graph_def(self._graph, name='')
            train_op = graph.as_graph_element(self._train_op)
            with new_session() as sess:
                sess.run(self._init)
                step = sess.make_callable(train_op)
                for number, feed in enumerate(feeds, 1):
                    sess.run(train_op, feed) if feed else step()
                    if number == len(feeds) or not of_last_alone:
                        found.append(bits_of(sess.run(self._reads)))
        return found


def changed(before: Dict[str, bytes], after: Dict[str, bytes]) -> List[str]:
    return [name for name in before if before[name] != after[name]]


def as_pair(model):
    """The train op and the loss, from the result of a model's function: both, or the train op."""
    return model if isinstance(model, tuple) else (model, None)


class Guarded:
    """A guarded train op in a session, and the assertions that the tests share."""

    def __init__(self, model, sess=None, cpus=1, **kwargs):
        train_op, loss = as_pair(model)
        self.train_op = gate.guard(train_op, loss, **kwargs)
        self.gate = gate.gate_of(self.train_op)
        self.snapshot = Snapshot()
        self.sess = sess or new_session(device_count={'CPU': cpus})
        initialize(self.sess)

    def step(self, feed=None) -> bool:
        """Runs one step, watched; returns whether it was written."""
        feed = dict(feed or {})
        feed[self.gate.watched] = True
        fetches = [self.train_op, self.gate.written, self.gate.bad]
        _, written, self.bad = self.sess.run(fetches, feed)
        assert written == (not any(self.bad))
        return written

    def finding(self) -> gate.Verdict:
        return self.gate.explain(self.bad)

    def assert_held(self, feed, why: str) -> None:
        """A step with `feed` is an incident, and every variable has the bits it had."""
        before = self.snapshot(self.sess)
        assert not self.step(feed), '%s: the step was written' % why
        names = changed(before, self.snapshot(self.sess))
        assert not names, '%s: changed %s' % (why, names)

    def assert_written(self, feed=None) -> None:
        """A step with `feed` is written, and changes a variable."""
        before = self.snapshot(self.sess)
        assert self.step(feed), 'not written: %s' % (self.finding(),)
        assert changed(before, self.snapshot(self.sess)), 'a finite step changed nothing'

    def close(self) -> None:
        self.sess.close()


def check_every_damage(build: Callable, skips=False, **kwargs) -> Guarded:
    """Builds a model, and damages it with every bad value at every place that it names.

    Args:
      skips: whether the test is skipped where TensorFlow itself cannot run the model.
    """
    damage = Damage()
    with skip_without_kernels() if skips else contextlib.ExitStack():
        model = build(damage)
        if skips:
            Unguarded(as_pair(model)[0]).bits([{}])
    guarded = Guarded(model, **kwargs)
    _require_held(guarded, damage)
    return guarded


def _require_held(guarded: Guarded, damage: Damage) -> None:
    assert damage.places
    # Each step feeds all placeholders, so that the session prepares the graph only once.
    healthy = {placeholder: 0.0 for placeholder in damage.places.values()}
    guarded.assert_written(healthy)
    for place, placeholder in damage.places.items():
        for name, value in BAD.items():
            hurt = dict(healthy)
            hurt[placeholder] = value
            guarded.assert_held(hurt, '%s in %s' % (name, place))
        guarded.assert_written(healthy)
    assert not guarded.snapshot.not_finite(guarded.sess)


def check_bits_and_damage(build: Callable, steps: int) -> Guarded:
    """Builds a model once. Guarded finite steps give the same bits as unguarded ones, and bad steps
    are held as in `check_every_damage`.
    """
    damage = Damage()
    train_op, loss = as_pair(build(damage))
    plain = Unguarded(train_op)
    (after_plain,) = plain.bits([{}] * steps, of_last_alone=True)
    guarded = Guarded((train_op, loss))
    with new_session() as sess:
        initialize(sess)
        run = sess.make_callable([guarded.train_op, guarded.gate.written])
        for step in range(steps):
            assert run()[1], 'step %d was not written' % step
        assert not changed(after_plain, guarded.snapshot(sess))
    _require_held(guarded, damage)
    return guarded


@contextlib.contextmanager
def skip_without_kernels():
    """Skips the test where TensorFlow itself cannot run the model."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, TypeError) as error:
        lacks = ('No OpKernel', 'Could not find device', 'not in list of allowed', 'does not match')
        if not any(words in str(error) for words in lacks):
            raise
        pytest.skip('TensorFlow %s cannot run this model unguarded' % tf.__version__)


def two_weights(damage, make_optimizer, dtype=tf.float32, use_resource=True, step=True):
    """A dense weight and an embedding, with an optimizer that trains both."""
    start = np.linspace(-1.0, 1.0, 15).reshape(5, 3)
    make = tf1.get_variable
    dense = make('dense', initializer=tf.constant(start[0], dtype), use_resource=use_resource)
    table = make('table', initializer=tf.constant(start, dtype), use_resource=use_resource)
    rows = tf.nn.embedding_lookup(table, [1, 1, 4])
    product = damage.gradient(dense, 'dense gradient') * damage.gradient(rows, 'sparse gradient')
    loss = tf.reduce_sum(tf.square(product - 1)) + damage('loss', dtype)
    global_step = tf1.train.get_or_create_global_step() if step else None
    return make_optimizer().minimize(loss, global_step=global_step), loss
