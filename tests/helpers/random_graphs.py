"""Small random trainings that write in many places, and random sets of fetches for their runs.

All is drawn from a seed, and two runs of the same fetches give the same values. An op reads a
variable either before the write, which needs the op, or after the write, for which the op waits. So
a good step has to give the bits of plain TensorFlow, fetched values included.
"""

import re
from typing import Any, Container, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


class Training(NamedTuple):
    """A graph, and its possible fetches.

    Attributes:
      x: the placeholder of the batch, [4, 2].
      train_ops: one or two train ops, by name.
      others: the other possible fetches, by name.
      losses: the loss of each train op, by the train op's name.
    """

    x: tf.Tensor
    train_ops: Dict[str, Any]
    others: Dict[str, Any]
    losses: Dict[str, tf.Tensor]


class _Builder:
    def __init__(self, seed: int):
        self._random = np.random.RandomState(seed)
        self.x = tf1.placeholder(tf.float32, [4, 2], name='x')
        self.others: Dict[str, Any] = {}
        self.count = 0

    def is_so(self, odds: float = 0.5) -> bool:
        return self._random.rand() < odds

    def one_of(self, choices):
        return choices[self._random.randint(len(choices))]

    def variable(self, value, trainable=None) -> Any:
        self.count += 1
        # The branches of v2 are functions, and take no reference.
        is_resource = self.is_so() or tf1.control_flow_v2_enabled()
        value = np.asarray(value, np.float32)
        return tf1.get_variable(
            'v%d' % self.count,
            initializer=tf.constant(value + np.float32(0.1) * self.count),
            trainable=self.is_so() if trainable is None else trainable,
            use_resource=is_resource,
        )

    def write(self, value: tf.Tensor) -> tf.Tensor:
        """Writes to a new variable a mean of its old value and `value`, or a sum; the result."""
        kind = self.one_of(['assign', 'assign', 'add', 'count', 'cond', 'group'])
        state = self.variable([0.0, 0.0])
        if kind == 'add':
            return tf.identity(tf1.assign_add(state, value))
        if kind == 'count':
            return tf.identity(tf1.assign_add(state, tf.ones([2])))
        if kind == 'cond':
            return tf1.cond(
                tf.reduce_sum(self.x) > self.one_of([-100.0, 0.0]),
                lambda: tf.identity(tf1.assign(state, 0.5 * state + value)),
                lambda: tf.identity(tf1.assign(state, 0.9 * state)),
            )
        made = tf.identity(tf1.assign(state, 0.9 * state + 0.1 * value))
        if kind == 'group':
            other = tf1.assign_add(self.variable([1.0, 2.0]), 0.1 * value)
            with tf.control_dependencies([tf.group(made, other)]):
                return tf.identity(made)
        return made

    def model(self, name: str, below: tf.Tensor) -> tf.Tensor:
        """A layer, with writes in its forward pass; returns the loss."""
        weights = self.variable([[0.5, -0.25], [0.25, 0.75]], trainable=True)
        hidden = tf.matmul(below, weights)
        hidden = tf.square(hidden)  # its gradient needs its input
        self.hidden = hidden
        mean = tf.reduce_mean(hidden, 0)
        waits: List[tf.Tensor] = []
        for _ in range(self._random.randint(0, 3)):
            made = self.write(mean)
            use = self.one_of(['wait', 'wait', 'value', 'both'])
            if use != 'value':
                waits.append(made)
            if use != 'wait':
                hidden = hidden + 0.1 * made
            if self.is_so(0.3):
                self.others['%s/write%d' % (name, self.count)] = made
        error = hidden - 0.5
        with tf.control_dependencies(waits):
            # The gradient needs the error, and waits for the writes only if that does.
            error = hidden - 0.5 if self.is_so(0.7) else error
            loss = tf.reduce_mean(tf.square(error), name=name + '_loss')
        self.weights = weights
        return loss

    def update(self, name: str, loss: tf.Tensor, step) -> Any:
        """The ops that train, and the ops around them."""
        weights, mean = self.weights, tf.reduce_mean(self.hidden, 0)
        kind = self.one_of(['sgd', 'momentum', 'adam', 'by hand', 'clipped'])
        if kind == 'by hand':
            (gradient,) = tf1.gradients(loss, [weights])
            update = tf.group(tf1.assign_sub(weights, 0.01 * gradient))
        elif kind == 'clipped':
            gradients, norm = tf.clip_by_global_norm(tf1.gradients(loss, [weights]), 1.0)
            self.others[name + '/norm'] = norm
            optimizer = tf1.train.GradientDescentOptimizer(0.01)
            update = optimizer.apply_gradients(zip(gradients, [weights]))
        else:
            optimizer = {
                'sgd': tf1.train.GradientDescentOptimizer(0.01),
                'momentum': tf1.train.MomentumOptimizer(0.01, 0.9),
                'adam': tf1.train.AdamOptimizer(0.01),
            }[kind]
            update = optimizer.minimize(loss, var_list=[weights])
        parts = [update]
        for number in range(self._random.randint(0, 3)):
            made = self.write(mean)  # as an update op
            if self.is_so(0.7):
                parts.append(made)
            if self.is_so(0.4) or made is not parts[-1]:
                self.others['%s/update%d' % (name, number)] = made.op if self.is_so() else made
        if step is not None:
            parts.append(step)
        if self.is_so(0.4):
            with tf.control_dependencies([update]):
                average = tf1.train.ExponentialMovingAverage(0.9, name='average_' + name)
                averaged = average.apply([weights])
            parts.append(averaged)
            if self.is_so(0.5):
                self.others[name + '/average'] = averaged
        if self.is_so(0.4):
            with tf.control_dependencies([update]):
                self.others[name + '/after'] = tf.reduce_sum(weights.read_value())
        train_op = parts[0] if len(parts) == 1 else tf.group(*parts)
        if self.is_so(0.25):
            with tf.control_dependencies([train_op]):
                train_op = tf.identity(loss, name=name + '_train')
        elif self.is_so(0.2) and len(parts) > 1:
            self.others[name + '/inner'] = update
        return train_op


def build(seed: int) -> Training:
    """Builds the training of a seed in the default graph."""
    builder = _Builder(seed)
    step = None
    if builder.is_so():
        counter = tf1.get_variable('steps', initializer=0, trainable=False)
        step = tf.identity(tf1.assign_add(counter, 1))
        if builder.is_so(0.3):
            builder.others['step'] = step
    names = ['a'] if builder.is_so(0.5) else ['a', 'b']
    train_ops, losses, below = {}, {}, builder.x
    for name in names:
        loss = losses[name] = builder.model(name, below)
        hidden = builder.hidden
        train_ops[name] = builder.update(name, loss, step)
        builder.others[name + '/loss'] = loss
        builder.others[name + '/mean'] = tf.reduce_mean(hidden)
        if builder.is_so():
            below = tf.stop_gradient(hidden)
        if builder.is_so(0.5):
            with tf.control_dependencies([loss]):
                builder.others[name + '/behind'] = tf.reduce_sum(hidden)
    if builder.is_so(0.3):
        builder.others['beside'] = builder.write(tf.reduce_mean(builder.x, 0))
    return Training(builder.x, train_ops, builder.others, losses)


class Step(NamedTuple):
    """A guarded run, and its effect.

    Attributes:
      fetched: the fetched values, by name.
      before, after: the values of all variables, by name.
      was_bad: whether it was an incident.
    """

    batch: np.ndarray
    before: Dict[str, np.ndarray]
    fetched: Dict[str, Any]
    after: Dict[str, np.ndarray]
    was_bad: bool


def draws(seed: int, training: Training) -> Iterator[Tuple[List[str], List[np.ndarray]]]:
    """Yields sets of fetches (one or both train ops, and some others), each with three batches.

    The first set is of the forward passes alone. The second of the three batches is bad.
    """
    random = np.random.RandomState(seed)
    others = sorted(training.others)
    forward = [each for each in others if re.search('loss|mean|behind|norm|write', each)]
    for choices in (forward, others):
        names = sorted(training.train_ops)
        names = names if random.rand() < 0.5 else [names[random.randint(len(names))]]
        names += [each for each in choices if random.rand() < 0.4]
        random.shuffle(names)
        batches = [random.randn(4, 2).astype(np.float32) for _ in range(3)]
        batches[1][random.randint(4), 1] = [np.nan, np.inf, 1e30, 1e10][random.randint(4)]
        yield names, batches


def new_session() -> tf1.Session:
    one = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    return tf1.Session(config=one)


class Reader:
    """Reads all variables of the default graph, by name."""

    def __init__(self) -> None:
        self._reads = {v.op.name: v.read_value() for v in tf1.global_variables()}

    def __call__(self, session) -> Dict[str, np.ndarray]:
        return session.run(self._reads)


def deviations(
    seed: int,
    names: List[str],
    steps: Sequence[Step],
    told: Container[str] = (),
    computes_losses: bool = False,
) -> List[str]:
    """The deviations of a seed's guarded steps from what must hold; empty if there are none.

    A good step gives the bits of plain TensorFlow. A bad one changes nothing, with two exceptions:
    the good one of two train ops may have been written, and so may the variables in `told`. If the
    guarded train op `computes_losses`, it makes the writes that its loss alone waits for.
    """
    found = []
    with tf.Graph().as_default(), new_session() as session:
        training = build(seed)
        elements = {**training.train_ops, **training.others}
        variables = {v.op.name: v for v in tf1.global_variables()}
        feeds = {n: tf1.placeholder(v.dtype.base_dtype, v.shape) for n, v in variables.items()}
        fetches = {n: elements[n] for n in names}
        if computes_losses:
            fetches.update((n + ' loss', loss) for n, loss in training.losses.items() if n in names)
        load = tf.group(*[tf1.assign(v, feeds[name]) for name, v in variables.items()])
        read = Reader()
        session.run(tf1.global_variables_initializer())
        for number, step in enumerate(steps):
            session.run(load, {feeds[name]: step.before[name] for name in feeds})
            fetched = session.run(fetches, {training.x: step.batch})
            after = read(session)
            unlike = differing(step.after, after)
            changed = [n for n in differing(step.after, step.before) if n not in told]
            wrong = {'not finite': [n for n, v in step.after.items() if not np.isfinite(v).all()]}
            if not step.was_bad:
                wrong['other bits'] = unlike
                wrong['fetched'] = differing(step.fetched, fetched)
            elif set(training.train_ops) <= set(names) and len(training.train_ops) == 2:
                wrong['written by half'] = sorted(set(changed) & set(unlike))
            else:
                wrong['changed'] = changed
            if step.was_bad and number % 3 != 1:
                wrong['held although good'] = [str(step.batch)]
            found += [
                'seed %d, step %d, %s: %s of %s' % (seed, number, names, what, which)
                for what, which in wrong.items()
                if which
            ]
    return found


def differing(first: Dict[str, Any], second: Dict[str, Any]) -> List[str]:
    """The names of the values that are not the same, bit by bit."""
    return [
        name
        for name, value in first.items()
        if value is not None and np.asarray(value).tobytes() != np.asarray(second[name]).tobytes()
    ]
