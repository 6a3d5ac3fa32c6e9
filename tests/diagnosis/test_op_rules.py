"""Each sentence about a cause appears if it is true of the inputs, and not for similar inputs."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard import gate
from slimguard.diagnosis import op_rules
from slimguard.diagnosis.diagnose import diagnose, glance
from tests.helpers.zoo import Failed, regression, weights

tf1 = tf.compat.v1
raw = tf.raw_ops
INF = np.inf


def f32(*values):
    return [tf.constant(np.array(value, np.float32)) for value in values]


def mean(x):
    return raw.Mean(input=x, axis=0)


def total(x):
    return raw.Sum(input=x, axis=0)


def largest(x):
    return raw.Max(input=x, axis=0)


def to_half(x):
    return raw.Cast(x=x, DstT=tf.float16)


def sparse_entropy(logits, label):
    return raw.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=tf.cast(label, tf.int32))


def entropy(logits, labels):
    return raw.SoftmaxCrossEntropyWithLogits(features=logits, labels=labels)


def ctc(labels):
    return raw.CTCLoss(
        inputs=tf.zeros([3, 1, 4]),
        labels_indices=tf.constant([[0, n] for n in range(len(labels))], tf.int64),
        labels_values=tf.constant(labels),
        sequence_length=[3],
        ignore_longer_outputs_than_inputs=False,
    )


def unary(name):
    return lambda x: getattr(raw, name)(x=x)


def binary(name):
    return lambda x, y: getattr(raw, name)(x=x, y=y)


def gradient(name):
    return lambda y, dy: getattr(raw, name)(y=y, dy=dy)


def product(x, y):
    return raw.MatMul(a=x, b=y)


# The sentence; the op; inputs that must give it; similar inputs that must not; and the type of op
# whose gradient the op computes.
TABLE = [
    ('log of 0 (1 of 2 values)', unary('Log'), ([0, 1],), ([-1, 1],)),
    ('log of a negative number (1 of 2 values)', unary('Log'), ([-1, 1],), ([0, 1],)),
    ('log of 0 (1 of 2 values) and log of a negative', unary('Log'), ([0, -1],), ([0, 1],)),
    ('log1p of -1 (', unary('Log1p'), ([-1, 0],), ([-2, 0],)),
    ('log1p of a number below -1', unary('Log1p'), ([-2, 0],), ([-1, 0],)),
    ('division by as little as 1e-39', unary('Reciprocal'), ([1e-39],), ([0],)),
    ('division by 0 (1 of 2 values)', binary('RealDiv'), ([1, 1], [0, 1]), ([1e30], [1e-30])),
    ('division by as little as 1e-30', binary('RealDiv'), ([1e30], [1e-30]), ([1], [0])),
    ('division by 0', unary('Reciprocal'), ([0],), ([2],)),
    ('rsqrt of 0, a division by 0', unary('Rsqrt'), ([0, 1],), ([-1, 1],)),
    ('rsqrt of a negative number', unary('Rsqrt'), ([-1, 1],), ([0, 1],)),
    ('sqrt of a negative number', unary('Sqrt'), ([-1, 1],), ([0, 1],)),
    ('division by 0, as 0 to a negative power', binary('Pow'), ([0], [-1]), ([-1], [0.5])),
    ('pow of a negative number with a fractional', binary('Pow'), ([-1], [0.5]), ([0], [-1])),
    ('overflow of pow: its input is as large as 50', binary('Pow'), ([10], [50]), ([0], [-1])),
    ('overflow of exp: its input is as large as 100', unary('Exp'), ([100, 1],), ([80, 1],)),
    ('overflow of exp: its input', unary('Exp'), ([100, 1],), ([INF, 1],)),
    ('Exp made Inf from an Inf', unary('Exp'), ([INF, 1],), ([100, 1],)),
    ('mean of an empty tensor', mean, ([],), ([3e38, 3e38],)),
    ('Mean of numbers as large as 3e+38', mean, ([3e38, 3e38],), ([],)),
    ('the sum of squares (L2Loss) of', lambda t: raw.L2Loss(t=t), ([1e20],), ([1e10],)),
    ('overflow of float32: Square of', unary('Square'), ([1e20],), ([1e10],)),
    (
        'overflow of float32: SquaredDifference',
        binary('SquaredDifference'),
        ([1e20], [0]),
        ([9], [0]),
    ),
    ('overflow of float32: Sum of', total, ([3e38, 3e38],), ([1e38, 1e38],)),
    ('largest or smallest of an empty tensor', largest, ([],), ([INF],)),
    ('overflow of float32: Mul of', binary('Mul'), ([1e20], [1e20]), ([0], [INF])),
    ('overflow of float32: AddV2 of', binary('AddV2'), ([3e38], [3e38]), ([INF], [-INF])),
    ('overflow of float32: MatMul of', product, ([[1e20]], [[1e20]]), ([[1e10]], [[1e10]])),
    ('overflow of float16: Cast of numbers as large as 1e+06', to_half, ([1e6],), ([1e4],)),
    ('0 times Inf (1 of 2 values)', binary('Mul'), ([0, 1], [INF, 1]), ([1e20], [1e20])),
    ('Inf less Inf (1 of 2 values)', binary('Sub'), ([INF, 1], [INF, 1]), ([3e38], [-3e38])),
    ('Inf less Inf (1 of 1 values)', binary('AddV2'), ([INF], [-INF]), ([3e38], [3e38])),
    ('Inf divided by Inf', binary('RealDiv'), ([INF], [INF]), ([1], [0])),
    (
        'softmax of nothing but -Inf (1 of 2 rows)',
        lambda x: raw.Softmax(logits=x),
        ([[-INF, -INF], [0, -INF]],),
        ([[INF, 0], [0, -INF]],),
    ),
    ('cross entropy of nothing but -Inf', sparse_entropy, ([[-INF, -INF]], [0]), ([[0, 0]], [0])),
    ('cross entropy with a class whose logit', sparse_entropy, ([[-INF, 0]], [0]), ([[0, 0]], [0])),
    (
        'cross entropy with a class whose logit',
        entropy,
        ([[-INF, 0]], [[0, 1]]),
        ([[0, 0]], [[0, 1]]),
    ),
    ('gradient of sqrt at 0 (1 of 2 values)', gradient('SqrtGrad'), ([0, 1], [1, 1]), ([1], [1])),
    ('gradient of log at 0: division by 0', unary('Reciprocal'), ([0],), ([1],), 'Log'),
    ('gradient of log1p at -1: division', unary('Reciprocal'), ([0],), ([1e-39],), 'Log1p'),
    ('gradient of pow at 0 (1 of 1', binary('Pow'), ([0], [-1]), ([-1], [0.5]), 'Pow'),
    ('Lgamma made Inf from finite inputs', unary('Lgamma'), ([-1],), ([INF],)),
]


def culprit_of(op, values, forward):
    return op_rules.Culprit(
        op.type,
        forward,
        [values[t.name] for t in op.inputs],
        values[op.outputs[0].name],
        op.outputs[0].dtype.name,
    )


def test_the_table_says_what_holds_and_does_not_say_it_close_by():
    cases = []
    for says, make, given, close, *forward in TABLE:
        made = [make(*f32(*each)) for each in (given, close)]
        ops = [(x if isinstance(x, tf.Tensor) else x[0]).op for x in made]
        cases.append((says, ops, (forward or [''])[0]))
    for labels in ([1, 1], [1, 2]):  # a label needs a frame between two symbols that are the same
        says = 'CTC label that does not fit its frames: 3 symbols and 1 between equal ones, 3'
        if labels == [1, 1]:
            close = ctc([1, 2, 1])[0].op
            cases.append((says, [ctc([1, 1, 2])[0].op, close], ''))
    tensors = {t.name: t for _, ops, _ in cases for op in ops for t in [*op.inputs, *op.outputs]}
    with tf1.Session() as session:
        values = session.run(tensors)
    wrong = []
    for says, ops, forward in cases:
        first, close = [op_rules.cause_of(culprit_of(op, values, forward)) for op in ops]
        assert not np.isfinite(values[ops[0].outputs[0].name].astype(np.float32)).all(), says
        if says not in first.sentence or says in close.sentence:
            wrong.append((says, first.sentence, close.sentence))
        assert first.is_known == (' made ' not in first.sentence)
    assert wrong == []


def test_a_label_that_is_no_class_is_named_as_where_it_makes_a_nan():
    # As on a GPU; a CPU raises an error.
    logits, nan = np.zeros([2, 3], np.float32), np.array([0, np.nan], np.float32)
    kind = 'SparseSoftmaxCrossEntropyWithLogits'
    bad, good = [
        op_rules.cause_of(
            op_rules.Culprit(kind, '', [logits, np.array([0, label])], nan, 'float32')
        )
        for label in (3, 2)
    ]
    assert bad.sentence == (
        'cross entropy of a label that is no class: 3, and there are classes 0 to 2 (1 of 2 labels)'
    )
    assert good.sentence == kind + ' made NaN from finite inputs'


# Whole steps. Each is good when it is fed `good`, and then bad.

ONES = np.ones([6, 4], np.float32)


def with_(value, *place):
    x = ONES.copy()
    x[place] = value
    return x


def placeholder(name, shape=(6, 4), dtype=tf.float32):
    return tf1.placeholder(dtype, shape, name=name)


def fails(loss, good, bad, train=None):
    return Failed(loss, train, feed=lambda step: bad if step else good)


def clipped(x, bad):
    w = weights()
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))

    def train():
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [w]), 5.0)
        return tf1.train.GradientDescentOptimizer(0.01).apply_gradients(zip(gradients, [w]))

    return fails(loss, {x: ONES}, {x: bad}, train)


def an_overflow_in_clip_by_global_norm():
    return clipped(placeholder('x'), with_(1.5e15, 2, 1))


def an_exponential(scale):
    """The exponential of a batch with a row of 400 among rows of 1, all multiplied by `scale`."""
    x, scales = placeholder('x'), placeholder('scales', [])
    loss = tf.reduce_mean(tf.exp(x * scales * weights([4])))
    return fails(loss, {x: ONES, scales: 0.0}, {x: with_(400, 2, 1), scales: scale})


def a_row_four_hundred_times_as_large():
    return an_exponential(1.0)


def a_row_four_hundred_times_as_large_that_is_not_at_fault():
    return an_exponential(1e4)


def a_logarithm(of):
    x = placeholder('x')
    logits = tf.matmul(x, weights([4, 4])) * [0.0, 1.0, 2.0, 3.0]
    loss = tf.reduce_mean(tf.math.log(of(logits)))
    return fails(loss, {x: ONES}, {x: with_(1e5, 2)})


def a_logarithm_of_a_softmax():
    return a_logarithm(tf.nn.softmax)


def a_logarithm_of_1_less_a_sigmoid():
    return a_logarithm(lambda logits: 1 - tf.nn.sigmoid(tf.abs(logits)))


def a_logarithm_of_the_probability_of(label, logit, of=tf.nn.softmax):
    """The logarithm for the labelled class, in a batch with this logit and label in row 2."""
    x, y = placeholder('x'), placeholder('y')
    probabilities = of(x * weights([4]))
    loss = tf.reduce_mean(-tf.math.log(tf.reduce_sum(y * probabilities, axis=1)))
    labels = np.tile(np.eye(4, dtype=np.float32)[0], [6, 1])
    bad = {x: with_(logit, 2, 1), y: labels.copy()}
    bad[y][2] *= label
    return fails(loss, {x: ONES, y: labels}, bad)


def a_class_whose_probability_is_0():
    return a_logarithm_of_the_probability_of(label=1, logit=1e5)


def a_label_of_zeros():
    return a_logarithm_of_the_probability_of(label=0, logit=2)


def a_label_of_zeros_beside_1_less_a_sigmoid_of_0():
    return a_logarithm_of_the_probability_of(0, -1e5, lambda logits: 1 - tf.nn.sigmoid(logits))


def a_logarithm_of_a_relu():
    return a_logarithm(lambda logits: tf.nn.relu(-tf.abs(logits * 1e-3) + 1))


def a_whole_batch_that_overflows():
    return clipped(placeholder('x'), ONES * 1.5e15)


def masked(logits_of, hidden):
    x, keep = placeholder('x'), placeholder('keep')
    good, bad = ONES.copy(), ONES.copy()
    good[:, 0], bad[hidden] = 0, 0
    logits = logits_of(tf.matmul(x, weights([4, 4])), keep)
    return fails(regression(tf.nn.softmax(logits)), {x: ONES, keep: good}, {x: ONES, keep: bad})


def a_row_all_hidden_by_a_constant():
    hide = tf.fill([6, 4], np.float32(-np.inf))
    return masked(lambda logits, keep: tf.where(keep > 0, logits, hide), 3)


def a_row_all_hidden_by_a_logarithm():
    return masked(lambda logits, keep: logits + tf.math.log(keep), 3)


def a_label_hidden_by_a_constant():
    x, labels = placeholder('x'), placeholder('labels', [6], tf.int32)
    logits = tf.matmul(x, weights([4, 4])) + tf.constant([-np.inf, 0, 0, 0], tf.float32)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    good, bad = np.ones(6, np.int32), np.where(np.arange(6) == 3, 0, 1)
    return fails(tf.reduce_mean(loss), {x: ONES, labels: good}, {x: ONES, labels: bad})


def two_inputs_of_which_a_script_computed_one():
    first, raw_reading = placeholder('advantages', [6]), placeholder('observations')
    loss = tf.reduce_mean(tf.matmul(raw_reading, weights([4, 1]))[:, 0] * first)
    ones = np.ones(6, np.float32)
    bad = {first: ones * np.nan, raw_reading: with_(np.nan, 2, 1)}
    return fails(loss, {first: ones, raw_reading: ONES}, bad)


def python(function, given, x, bad):
    y = tf1.py_func(function, [given], tf.float32)
    y.set_shape([6, 4])
    return fails(regression(tf.matmul(y, weights())), {x: ONES}, {x: bad})


def a_python_function_of_finite_inputs():
    x = placeholder('x')
    return python(lambda v: np.where(v == 0, np.float32(np.inf), v), x, x, with_(0, 2, 1))


def a_python_function_of_a_bad_value():
    x = placeholder('x')
    return python(lambda v: v * 2, tf.math.log(x), x, with_(0, 2, 1))


def adam_in_sixteen_bits(**arguments):
    x = placeholder('x', dtype=tf.float16)
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weights(dtype=tf.float16)) - 2))
    adam = tf1.train.AdamOptimizer(0.01, **arguments)
    return fails(loss, {x: ONES}, {x: ONES}, lambda: adam.minimize(loss))


def adam_whose_rate_has_a_factor():
    gate.scale_learning_rates(tf1.get_default_graph(), is_shared=False)
    return adam_in_sixteen_bits()


def adam_with_a_beta1_that_is_1():
    return adam_in_sixteen_bits(beta1=0.9999, epsilon=1e-3)


def own_update(divisor, step_of):
    """A gradient divided by a variable that is 0."""
    x, weight = placeholder('x'), weights()
    loss = regression(tf.matmul(x, weight))
    (gradient,) = tf.gradients(loss, [weight])
    variable = tf1.get_variable(divisor, [], initializer=tf1.zeros_initializer(), trainable=False)
    step = step_of(variable, gradient)

    def train():
        with tf.control_dependencies([weight.assign_sub(step)]):
            return variable.assign_add(1.0 if divisor == 'count' else tf.reduce_sum(gradient)).op

    return fails(loss, {x: ONES}, {x: ONES}, train)


def an_own_rate_that_counts_steps():
    return own_update('count', lambda count, gradient: 0.1 / count * gradient)


def an_own_optimizer_whose_slot_is_0():
    return own_update('slot', lambda slot, gradient: gradient / tf.sqrt(slot))


def rate_of(step_of, learning_rate):
    x = placeholder('x')
    step = tf1.train.get_or_create_global_step()
    loss = regression(tf.matmul(x, weights()))
    rate = learning_rate(tf.cast(step_of(step, x), tf.float32))
    return fails(
        loss,
        {x: ONES},
        {x: with_(0, 0, 0)},
        lambda: tf1.train.MomentumOptimizer(rate, 0.9).minimize(loss, step),
    )


def a_rate_of_the_step_alone():
    return rate_of(lambda step, x: step, lambda step: 0.1 * step * tf.math.rsqrt(step))


def a_rate_of_the_batch():
    return rate_of(lambda step, x: x[0, 0], lambda x: 0.01 * x * tf.math.rsqrt(x))


def a_rate_that_is_fed():
    x, rate = placeholder('x'), placeholder('rate', [])
    loss = regression(tf.matmul(x, weights()))
    optimizer = tf1.train.GradientDescentOptimizer(rate)
    good, bad = {x: ONES, rate: 0.1}, {x: ONES, rate: np.nan}
    return fails(loss, good, bad, lambda: optimizer.minimize(loss))


def a_rate_of_a_counter_that_others_write():
    counter = tf1.get_variable('counter', initializer=0, trainable=False)
    return rate_of(lambda step, x: counter, lambda counter: 0.1 * tf.math.rsqrt(counter))


def a_number_in_a_text():
    text = placeholder('text', dtype=tf.string)
    loss = regression(tf.matmul(tf.strings.to_number(text), weights()))
    return fails(loss, {text: ONES.astype(str)}, {text: with_(np.nan, 2, 1).astype(str)})


def a_loop(inner):
    """A loop whose result is bad, beside a loop that only counts."""
    x, w = placeholder('x'), weights()

    def count(i, total):
        return i + 1, total + tf.gather(tf.matmul(x, w), tf.math.floormod(i, 6))

    _, counted = tf1.while_loop(lambda i, _: i < 3, count, [0, tf.zeros([3])])

    def body(i, total):
        return i + 1, total + inner(x)

    _, total = tf1.while_loop(lambda i, _: i < 2, body, [0, tf.zeros([6, 4])])
    loss = regression(tf.matmul(total, w)) + tf.reduce_sum(counted)
    return fails(loss, {x: ONES}, {x: with_(-3e38, 3)})


def a_softmax_in_a_loop():
    return a_loop(lambda x: tf.nn.softmax(x * 2))


def an_inf_that_saturates_in_a_loop():
    """The loss is finite, and its gradient is not."""
    x, weight = placeholder('x'), weights()

    def body(i, total):
        return i + 1, total + tf.tanh(tf.matmul(x, weight))

    _, total = tf1.while_loop(lambda i, _: i < 2, body, [0, tf.zeros([6, weight.shape[1]])])
    return fails(regression(total), {x: ONES}, {x: with_(np.inf, 2, 1)})


def a_gradient_of_a_root(size_of):
    x = placeholder('x')
    size = tf.sqrt(size_of(tf.matmul(x, weights([4, 4]))))
    return fails(tf.reduce_mean(size), {x: ONES}, {x: with_(0, 2)})


def a_norm_of_zeros():
    return a_gradient_of_a_root(lambda given: tf.reduce_sum(tf.square(given), 1))


def a_root_of_0():
    return a_gradient_of_a_root(lambda given: tf.square(given)[:, 0])


def a_log_of_a_batch_turned_round():
    """The first axis is as long as the batch, but is not the batch axis."""
    x = placeholder('x', [6, 6])
    good = np.ones([6, 6], np.float32)
    bad = good - np.eye(6, dtype=np.float32)[2][:, None] * np.eye(6, dtype=np.float32)[5]
    loss = tf.reduce_mean(tf.math.log(tf.transpose(x))) * tf.reduce_sum(weights())
    return fails(loss, {x: good}, {x: bad})


def a_constant_of_the_graph(value):
    x, row = placeholder('x'), placeholder('row', [], tf.int32)
    scale = tf.gather(tf.constant([1.0, value]), row)
    hidden = tf.nn.relu(tf.matmul(x, tf1.get_variable('hidden', [4, 4])))
    loss = regression(tf.matmul(hidden, weights())) * scale
    return fails(loss, {x: ONES, row: 0}, {x: ONES, row: 1})


def a_default_that_a_script_feeds():
    x = tf1.placeholder_with_default(ONES, ONES.shape, name='x')
    return fails(regression(tf.matmul(x, weights())), {x: ONES}, {x: with_(np.nan, 2, 1)})


def a_mean_over_a_mask_of_zeros():
    """The sums depend on weights; the counts, which are at fault, on the batch alone."""
    x, keep = placeholder('x'), placeholder('keep')
    sums = tf.reduce_sum(tf.matmul(x, weights([4, 4])) * keep, axis=1)
    loss = tf.reduce_mean(sums / tf.reduce_sum(keep, axis=1))
    return fails(loss, {x: ONES, keep: ONES}, {x: ONES, keep: with_(0, 3)})


def a_constant_that_is_nan():
    return a_constant_of_the_graph(np.nan)


def a_constant_that_is_inf():
    return a_constant_of_the_graph(np.inf)


def a_constant_that_is_large():
    return a_constant_of_the_graph(3e38)


def an_update_by(rate):
    x = placeholder('x')
    optimizer = tf1.train.GradientDescentOptimizer(rate)
    loss = tf.reduce_mean(tf.matmul(x, weights()))
    return fails(loss, {x: ONES * 0}, {x: with_(1e8, 2)}, lambda: optimizer.minimize(loss))


def a_rate_that_is_too_large():
    return an_update_by(1e35)


def a_run_that_is_finite_the_second_time():
    failed = an_overflow_in_clip_by_global_norm()
    failed.values['x:0'] = ONES
    return failed


STEPS = [
    (
        an_overflow_in_clip_by_global_norm,
        'the sum of squares (L2Loss) of numbers as large as 1.21667e+29',
        'x:0 is as large as 1.5e+15, in row 2, and 1 at most in the other rows',
        'batch',
    ),
    (
        a_row_four_hundred_times_as_large,
        'overflow of exp',
        'x:0 is as large as 400, in row 2, and 1 at most in the other rows',
        'batch',
    ),
    (
        a_row_four_hundred_times_as_large_that_is_not_at_fault,
        'overflow of exp',
        '!in row',
        'explosion',
    ),
    (a_logarithm_of_a_softmax, 'log of 0', '; its input comes from a Softmax', ''),
    (a_logarithm_of_1_less_a_sigmoid, 'log of 0', '; its input comes from a Sigmoid', ''),
    (a_logarithm_of_a_relu, 'log of 0', '!comes from', ''),
    (a_class_whose_probability_is_0, 'log of 0 (1 of 6', 'its input comes from a Softmax', ''),
    (a_label_of_zeros, 'log of 0 (1 of 6 values), in row 2', '!comes from', ''),
    (a_label_of_zeros_beside_1_less_a_sigmoid_of_0, 'log of 0 (1 of 6', '!comes from', ''),
    (a_whole_batch_that_overflows, 'overflow of float32', '!in row', 'explosion'),
    (a_row_all_hidden_by_a_constant, 'softmax of nothing but -Inf', 'in row 3', ''),
    (a_row_all_hidden_by_a_logarithm, 'softmax of nothing but -Inf', 'in row 3', ''),
    (
        two_inputs_of_which_a_script_computed_one,
        'bad data: 1 NaN among 24 values, in row 2; not finite as well: advantages:0',
        'observations:0 (Placeholder)',
        'batch',
    ),
    (
        a_python_function_of_finite_inputs,
        'in the forward pass: PyFunc returned 1 Inf among 24 values from finite inputs, in row 2',
        '!in the input',
        '',
    ),
    (a_python_function_of_a_bad_value, 'log of 0 (1 of 24 values), in row 2', '!PyFunc', 'batch'),
    (
        adam_in_sixteen_bits,
        'epsilon is 0 in float16',
        '!beta1',
        'comes again',
    ),
    (
        adam_whose_rate_has_a_factor,
        'would not be finite after the update, though the gradient and all other inputs of the '
        'update are: epsilon is 0 in float16',
        ' (lr): float16[]',
        'comes again',
    ),
    (
        adam_with_a_beta1_that_is_1,
        'beta1 is 1 in float16',
        '!epsilon',
        'comes again',
    ),
    (
        an_own_rate_that_counts_steps,
        'division by 0 (1 of 1 values), where count is 0; it depends on variables alone',
        '!in row',
        'state',
    ),
    (an_own_optimizer_whose_slot_is_0, 'division by 0', 'it depends on variables alone', 'state'),
    (
        a_rate_of_the_step_alone,
        'the learning rate itself is not finite: rsqrt of 0, a division by 0',
        'it depends neither on the batch nor on the weights',
        'comes again',
    ),
    (
        a_rate_that_is_fed,
        'the learning rate itself is not finite: it was given as NaN',
        '!data',
        '',
    ),
    (
        a_rate_of_a_counter_that_others_write,
        'the learning rate itself is not finite: rsqrt of 0',
        '!it depends',
        '',
    ),
    (a_number_in_a_text, 'StringToNumber made NaN from what is no number', 'in row 2', 'batch'),
    (a_rate_of_the_batch, 'rsqrt of 0, a division by 0', '!it depends neither', 'batch'),
    (a_softmax_in_a_loop, 'somewhere in the loop while', '!Softmax', 'batch'),
    (an_inf_that_saturates_in_a_loop, 'bad data: 1 Inf', 'in row 2', 'batch'),
    (
        a_norm_of_zeros,
        'gradient of sqrt at 0, of a norm of zeros (1 of 6 values), in row 2',
        'in the backward pass',
        '',
    ),
    (a_log_of_a_batch_turned_round, 'log of 0 (1 of 36 values)', '!in row', 'batch'),
    (a_root_of_0, 'gradient of sqrt at 0 (1 of 6 values), in row 2', '!norm', ''),
    (a_mean_over_a_mask_of_zeros, 'division by 0 (1 of 6 values)', 'in row 3', 'batch'),
    (a_default_that_a_script_feeds, 'bad data: 1 NaN', 'in row 2', 'batch'),
    (a_constant_that_is_nan, 'in a constant: 1 NaN among 2 values', '(Const)', ''),
    (a_constant_that_is_inf, 'in a constant: 1 Inf among 2 values', 'at [1] = inf', ''),
    (
        a_label_hidden_by_a_constant,
        'cross entropy with a class whose logit is -Inf (1 of 6 rows)',
        'in row 3',
        '',
    ),
    (a_constant_that_is_large, 'overflow of float32', '!constant', 'explosion'),
    (
        a_rate_that_is_too_large,
        'w would not be finite after the update, though the gradient and all other inputs',
        '!is 0 in',
        'explosion',
    ),
    (
        a_run_that_is_finite_the_second_time,
        'run again with what it drew, the step is finite',
        'not found',
        'batch',
    ),
]


@pytest.mark.parametrize(
    'make, says, more, kind', STEPS, ids=lambda each: getattr(each, '__name__', '')
)
def test_a_step_is_blamed_on_what_made_it_bad(make, says, more, kind, control_flow_v1):
    failed = make()
    found = diagnose(failed.bad_step)
    assert says in str(found) and found.kind == kind
    assert (more[1:] not in (found.in_short or '')) if more[0] == '!' else (more in str(found))
    if make in (a_python_function_of_a_bad_value, a_python_function_of_finite_inputs):
        # Without a search, nothing is said of its inputs.
        seen = glance(failed.bad_step, 'no time')
        assert 'what it was given was not looked at' in seen.trouble and seen.kind == ''


def test_only_the_data_of_the_root_are_said_to_be_in_its_gradient():
    x, y, weight = placeholder('x'), placeholder('y'), weights()
    root = tf.sqrt(tf.reduce_sum(tf.square(tf.matmul(x, weight)), 1))
    failed = fails(tf.reduce_sum(root * y[:, 0]), {x: ONES, y: ONES}, {x: with_(0, 2), y: ONES})
    found = diagnose(failed.bad_step)
    assert found.drawn == (x.name,) and [it.where for it in found.inputs] == ['0 at [2]', '']


GREW = 'the loss went from 1 at step 40 to 1e+17 at step 61'


def test_after_an_explosion_neither_the_op_nor_a_row_is_at_fault():
    failed = an_overflow_in_clip_by_global_norm()
    found = diagnose(failed.bad_step._replace(explosion=GREW))
    assert found.in_short.startswith(GREW + '; then L2Loss overflowed; ')
    assert str(found).startswith(GREW + '; then L2Loss overflowed\nin the ')
    assert found.kind == 'explosion' and 'in row' not in str(found)
    assert not found.non_finite.rows


def test_what_the_batch_alone_made_bad_is_no_explosion():
    failed = two_inputs_of_which_a_script_computed_one()
    found = diagnose(failed.bad_step._replace(explosion=GREW))
    assert not found.explosion and found.bad_rows == [2] and found.kind == 'batch'
