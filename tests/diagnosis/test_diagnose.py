"""The diagnosis: it names the op, the line and the reason, and changes nothing."""

import inspect
import linecache

import numpy as np
import pytest
import tensorflow as tf

from slimguard import compat
from slimguard.diagnosis.diagnose import diagnose, glance
from slimguard.diagnosis.exported_step import export
from tests.helpers import zoo
from tests.helpers.gate_models import new_session
from tests.helpers.models import Batches
from tests.helpers.zoo import Failed, batches, put, regression, weights

tf1 = tf.compat.v1

HERE = zoo.__file__


def assert_line_at_fault(line, animal):
    """The line has the mark, and is the animal's own, or the one that makes an iterator."""
    assert line.file == HERE
    assert '# at fault' in linecache.getline(HERE, line.number)
    own, start = inspect.getsourcelines(animal.build)
    is_own = start <= line.number < start + len(own)
    assert is_own or (animal.phase == 'input' and 'an iterator' in line.text)


@pytest.mark.parametrize('name', sorted(zoo.ZOO))
def test_the_diagnosis_names_the_op_the_line_and_the_reason(name):
    expected = zoo.ZOO[name]
    failed = zoo.failed(name)
    before = failed.state()
    found = diagnose(failed.bad_step)
    assert failed.state() == before
    assert expected.says in found.trouble
    assert found.phase == expected.phase
    assert found.op_type in expected.op_types
    assert_line_at_fault(found.line, expected)
    if expected.rows:
        assert found.non_finite.rows == list(expected.rows)


def diagnosis_of(failed):
    before = failed.state()
    found = diagnose(failed.bad_step)
    assert failed.state() == before
    return found


@pytest.mark.full
def test_a_forward_pass_that_writes_is_run_again_and_writes_nothing():
    slim = compat.import_slim()
    normal = slim.batch_norm(
        tf.matmul(batches(put(0.0, 2)), weights()), updates_collections=None, is_training=True
    )
    failed = Failed(tf.reduce_mean(tf.math.log(normal)))  # at fault: log
    found = diagnosis_of(failed)
    assert (found.phase, found.op_type) == ('forward', 'Log')
    assert 'at fault: log' in found.line.text


def test_the_number_that_the_op_cannot_take_is_shown_with_its_place():
    x = batches(put(0.0, 2, 1))
    found = diagnosis_of(Failed(tf.reduce_mean(tf.matmul(tf.math.log(tf.abs(x)), weights()))))
    assert found.trouble.startswith('log of 0') and found.inputs[0].where == '0 at [2, 1]'
    assert ': 0 at [2, 1]\n' in str(found)


@pytest.mark.parametrize(
    'reshape, told',
    [
        (lambda h: tf.squeeze(h, 1), 'Squeeze:0: float32[6], '),
        (lambda h: tf.reshape(h, [2, 3]), 'Reshape:0: float32[2, 3], '),
        (lambda h: tf.expand_dims(h, 0), 'ExpandDims:0: float32[1, 6, 1], '),
    ],
)
def test_an_input_of_another_shape_is_shown_with_its_own(reshape, told):
    products = tf.matmul(batches(put(0.0, 2, 1)), weights((4, 1)) * 0.0)
    found = diagnosis_of(Failed(tf.reduce_mean(tf.math.log(reshape(products)))))
    assert told in str(found)


@pytest.mark.full
def test_each_run_of_the_copy_begins_with_the_same_variables():
    x = batches(put(0.0, 2, 1), bad_step=0)
    n = tf1.get_variable('n', initializer=1.0, trainable=False, use_resource=True)
    begins = n.read_value()
    with tf.control_dependencies([begins]):
        write = n.assign_sub(1.0).op
    with tf.control_dependencies([write]):
        x = tf.identity(x)
    logs = tf.math.log(x + begins - 1.0)
    found = diagnosis_of(Failed(regression(tf.matmul(logs, weights()))))
    assert found.non_finite.positions == [((2, 1), -np.inf)]
    assert found.output.inf == 1


@pytest.mark.full
def test_a_step_of_several_devices_runs_again_where_some_of_them_are_missing(monkeypatch):
    anywhere = new_session(allow_soft_placement=True)
    monkeypatch.setattr(zoo, 'new_session', lambda: anywhere)
    with tf.device('/job:localhost/task:0/device:GPU:0'):
        logs = tf.math.log(batches(put(0.0, 2, 1)))
    with tf.device('/device:CPU:1'):
        failed = Failed(tf.reduce_mean(tf.matmul(logs, weights())))
    placed = {node.device for node in export(failed.capture).graph_def.node if node.op == 'Log'}
    assert placed == {'/device:GPU:0'}
    assert diagnosis_of(failed).op_type == 'Log'


@pytest.mark.full
def test_it_runs_on_the_gpus_that_the_training_may_use(monkeypatch):
    options = tf1.GPUOptions(visible_device_list='1')
    training = new_session(gpu_options=options)
    monkeypatch.setattr(zoo, 'new_session', lambda: training)
    configs, begin = [], tf1.Session.__init__

    def begin_and_note(self, *args, **kwargs):
        configs.append(kwargs['config'])
        begin(self, *args, **kwargs)

    failed = zoo.failed('log_of_zero')
    monkeypatch.setattr(tf1.Session, '__init__', begin_and_note)
    diagnosis_of(failed)
    assert [config.gpu_options for config in configs] == [options]


def test_an_op_that_waits_for_the_batch_draws_no_other():
    drawn = Batches(bad=[1])
    with tf.control_dependencies([drawn.x]):
        one = tf.constant(1.0)
    failed = Failed(tf.reduce_mean(tf.matmul(drawn.x, weights([3, 1]))) * one)
    before = drawn.drawn
    found = diagnosis_of(failed)
    assert (found.phase, found.non_finite.rows) == ('input', [1])
    assert drawn.drawn == before


def test_a_mask_of_infinity_is_not_to_blame():
    x = batches(put(-3.0, 1, 1))
    mask = tf.constant([0.0, 0.0, -np.inf])
    x += 0.0 * tf.exp(mask)[0]  # so that the mask comes first
    shares = tf.nn.softmax(mask + tf.matmul(tf.sqrt(x), weights()))  # at fault: sqrt
    found = diagnosis_of(Failed(tf.reduce_mean(tf.square(shares))))
    assert (found.op_type, 'at fault: sqrt' in found.line.text) == ('Sqrt', True)


@pytest.mark.parametrize('search', [True, False], ids=['searched', 'glanced at'])
def test_all_of_a_batch_that_is_bad_is_named(search):
    def generate():
        for step in range(10):
            bad = np.full([4, 3], np.nan if step == 1 else 1.0, np.float32)
            yield np.ones([4, 4], np.float32), bad, bad

    dataset = tf.data.Dataset.from_generator(generate, (tf.float32,) * 3, ([4, 4], [4, 3], [4, 3]))
    x, y, weight = tf1.data.make_initializable_iterator(dataset).get_next()
    loss = tf.reduce_sum((tf.matmul(x, weights()) - y) ** 2 * weight)
    failed = Failed(loss)
    if search:
        found = diagnosis_of(failed)
    else:
        found = glance(failed.bad_step, 'no time')
    assert found.tensor == y.name
    assert found.trouble.endswith('in rows 0, 1, 2, 3; not finite as well: %s' % weight.name)


def test_a_constant_that_is_bad_is_named():
    x = batches(put(5.0, 1))
    factor = tf.where(x > 4.0, tf.fill([6, 4], np.float32(np.nan)), tf.ones([6, 4]))
    found = diagnosis_of(Failed(regression(tf.matmul(x * factor, weights()))))
    assert found.phase == 'constant' or found.op_type == 'Fill'


def test_a_branch_is_looked_into_if_it_was_taken(control_flow):
    x = batches(put(0.0, 3, 3))
    w = weights()
    taken = tf1.cond(
        tf.reduce_min(x) < 1e-3,
        lambda: tf.matmul(tf.math.log(x), w),  # at fault: a branch
        lambda: tf.matmul(tf.sqrt(x), w),
    )  # at fault: a cond
    found = diagnosis_of(Failed(regression(taken)))
    if control_flow == 'v2':
        assert found.op_type in ('If', 'StatelessIf')
        assert 'which cannot be looked into' in found.trouble
    else:
        assert found.op_type == 'Log'
        assert 'at fault: a branch' in linecache.getline(found.line.file, found.line.number)


@pytest.mark.full
@pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])
def test_what_is_read_in_a_branch_is_dead_where_that_was_not_taken(use_resource, control_flow_v1):
    """A branch reads a sum of gradients in the third step; the second is bad."""
    tf1.get_variable_scope().set_use_resource(use_resource)
    logs = tf.math.log(batches(put(0.0, 2), bad_step=1))  # at fault: log
    loss = tf.reduce_sum(tf.matmul(logs, weights()))
    total = tf1.get_variable('total', [4, 3], initializer=tf1.zeros_initializer(), trainable=False)
    n = tf1.get_variable('n', [], tf.int32, initializer=tf1.zeros_initializer(), trainable=False)

    def train():
        optimizer = tf1.train.GradientDescentOptimizer(0.01)
        ((gradient, w),) = optimizer.compute_gradients(loss)
        with tf.control_dependencies([tf1.assign_add(total, gradient), tf1.assign_add(n, 1)]):

            def apply():
                with tf.control_dependencies([optimizer.apply_gradients([(total + 0.0, w)])]):
                    return tf.group(tf1.assign(total, tf.zeros_like(total)))

            return tf1.cond(tf.equal(n.read_value() % 3, 0), apply, tf.no_op)

    failed = Failed(loss, train)
    found = diagnosis_of(failed)
    assert (failed.steps, found.op_type) == (1, 'Log')
    assert 'at fault: log' in found.line.text


def test_what_is_drawn_in_a_branch_from_one_tensor_twice(control_flow_v1):
    x = batches(put(0.0, 2))

    def drawn():
        product = tf1.py_func(lambda a, b: a * b, [x, x], tf.float32, stateful=True)
        product.set_shape(x.shape)
        return product

    taken = tf1.cond(tf.reduce_min(x) < 1e-3, drawn, lambda: x)
    failed = Failed(regression(tf.matmul(tf.math.log(taken), weights())))
    assert diagnosis_of(failed).op_type == 'Log'
    with tf.Graph().as_default():  # each node once, and each a known op
        tf1.import_graph_def(export(failed.capture).graph_def, name='')


def test_what_a_loop_drew_is_said_not_to_be_kept(control_flow_v1):
    drawn = Batches(bad=[3])

    def body(i, total):
        row = tf1.py_func(drawn._draw, [], tf.float32, stateful=True)
        row.set_shape([4, 3])
        return i + 1, total + row

    _, total = tf1.while_loop(lambda i, _: i < 2, body, [0, tf.zeros([4, 3])])
    failed = Failed(regression(tf.matmul(total, weights([3, 1]))))
    before = drawn.drawn
    found = diagnosis_of(failed)
    assert drawn.drawn == before == 4
    assert not found.is_known
    assert 'not kept, for it was drawn inside a loop: while/PyFunc' in str(found)


def loop_over_tensor_arrays(x, of_row, ends):
    """A loop that reads x row by row, as an RNN does. Returns its last state, or all outputs."""
    rows = tf.TensorArray(tf.float32, 6).unstack(x)

    def body(i, total, written):
        row = of_row(rows.read(i))
        return i + 1, total + row, written.write(i, 2.0 * row)

    start = [0, tf.zeros([4]), tf.TensorArray(tf.float32, 6)]
    _, total, written = tf1.while_loop(lambda i, *_: i < 6, body, start)
    return written.stack() if ends == 'written' else tf.reshape(total, [1, 4])


@pytest.mark.parametrize('ends', ['carried', 'written'])
def test_what_a_loop_reads_from_a_tensor_array_is_looked_at(control_flow, ends):
    x = batches(put(np.nan, 2))
    read = loop_over_tensor_arrays(x, lambda row: row, ends)
    found = diagnosis_of(Failed(regression(tf.matmul(read, weights()))))
    assert found.phase == 'input' and found.non_finite.rows == [2]


@pytest.mark.full
@pytest.mark.parametrize('ends', ['carried', 'written'])
def test_what_a_loop_does_to_what_it_reads_is_not_seen_and_that_is_said(control_flow, ends):
    x = batches(put(0.0, 2))
    read = loop_over_tensor_arrays(x, tf.math.log, ends)
    found = diagnosis_of(Failed(regression(tf.matmul(read, weights()))))
    assert 'which cannot be looked into' in found.trouble


@pytest.mark.full
def test_a_loss_above_max_loss_is_said_to_be_just_that():
    loss = regression(tf.matmul(batches(put(100.0, 3)), weights()))  # at fault: max_loss
    found = diagnosis_of(Failed(loss, max_loss=1000.0))
    assert 'above its limit, and everything is finite' in found.trouble
    assert found.op == loss.op.name


def test_a_variable_that_was_bad_before_the_step_is_named():
    w = weights(value=np.nan)
    found = diagnosis_of(Failed(regression(tf.matmul(batches(put(0.0, 0)), w))))
    assert (found.phase, found.trouble) == ('variable', 'w was already not finite before this step')


def test_the_ranges_go_along_the_step():
    found = diagnosis_of(zoo.failed('log_of_zero'))
    tensors = [row.tensor for row in found.ranges]
    assert tensors[0] == 'IteratorGetNext:0'
    assert not any('slimguard' in name for name in tensors)  # such as the limits of the gate
    assert tensors.index('Log:0') < tensors.index('MatMul:0') < tensors.index('Mean:0')
    log = found.ranges[tensors.index('Log:0')]
    assert (log.phase, log.range.inf, log.range.shape) == ('forward', 1, (6, 4))
    assert {row.phase for row in found.ranges} >= {'input', 'forward', 'backward'}


@pytest.mark.full
@pytest.mark.skipif(tf.__version__.startswith('1.'), reason='tf.function came with TensorFlow 2')
def test_a_function_that_draws_is_kept_as_a_whole():
    @tf.function
    def damaged(x):
        return tf.math.log(tf.nn.dropout(x, rate=0.5))

    x = damaged(batches(put(1.0, 0)))  # at fault: a function
    found = diagnosis_of(Failed(regression(tf.matmul(x, weights()))))
    assert found.phase == 'forward'
    assert found.op_type in ('StatefulPartitionedCall', 'PartitionedCall')
    assert 'it comes out of a function' in found.trouble
    assert 'at fault: a function' in found.line.text


@pytest.mark.full
def test_one_pixel_of_a_residual_network_is_named():
    nets = pytest.importorskip('tf_slim.nets')
    slim = compat.import_slim()
    images = tf1.placeholder(tf.float32, [3, 32, 32, 3], name='images')
    with slim.arg_scope(nets.resnet_v1.resnet_arg_scope()):
        make_block = nets.resnet_v1.resnet_v1_block
        blocks = [make_block('block%d' % number, 16, num_units=2, stride=2) for number in (1, 2)]
        logits = nets.resnet_v1.resnet_v1(images, blocks, 10, is_training=True)[0]
    tf1.losses.sparse_softmax_cross_entropy([0] * 3, tf.reshape(logits, [3, 10]))
    batch = np.random.RandomState(0).randn(3, 32, 32, 3).astype(np.float32)
    batch[2, 7, 9, 1] = np.nan
    failed = Failed(tf1.losses.get_total_loss(), feed=lambda step: {'images:0': batch})
    found = diagnosis_of(failed)
    assert (found.phase, found.tensor, found.non_finite.rows) == ('input', 'images:0', [2])
    assert found.non_finite.positions[0][0] == (2, 7, 9, 1)


def test_the_gradient_that_is_named_is_that_of_the_tensor_that_is_shown():
    x = tf1.placeholder(tf.float32, [8, 4], name='x')
    first = tf1.get_variable('first', [4, 8])
    last = tf1.get_variable('last', [8, 1])
    loss = tf.reduce_mean(tf.matmul(tf.matmul(x, first), last))
    minimize = tf1.train.RMSPropOptimizer(0.01).minimize

    def feed(step):
        return {x: np.full([8, 4], 1e30 if step == 1 else 1.0)}

    found = diagnosis_of(Failed(loss, lambda: minimize(loss), feed=feed))
    assert found.trouble.startswith('the gradient of last is finite, but its square is not')
    assert found.output.shape == (8, 1)


@pytest.mark.parametrize('is_bad_data, use_resource', [(True, False), (True, True), (False, True)])
@pytest.mark.parametrize('search', [True, False], ids=['searched', 'glanced at'])
def test_a_moving_average_that_the_step_reads_again_is_no_input(search, is_bad_data, use_resource):
    """The capture keeps its new value like a drawn one, since the step reads it after a write."""
    x = tf1.placeholder(tf.float32, [8, 4], name='zz')
    mean = tf1.get_variable('mean', [4], trainable=False, use_resource=use_resource)
    update = mean.assign_sub((mean - tf.reduce_mean(x, 0)) * 0.5)
    with tf.control_dependencies([update]):
        centered = x - tf.identity(update)
    loss = tf.reduce_mean(tf.matmul(centered, weights()))

    def feed(step):
        value = np.full([8, 4], np.float32(1.0))
        if step == 1:
            value[5] = np.nan if is_bad_data else 3e38  # the sum over two such rows overflows
            value[6] = value[5]
        return {x: value}

    failed = Failed(loss, feed=feed)
    if search:
        found = diagnosis_of(failed)
    else:
        found = glance(failed.bad_step, 'no time')
    if is_bad_data:
        assert (found.phase, found.tensor, found.non_finite.rows) == ('input', 'zz:0', [5, 6])
        assert 'not finite as well' not in found.trouble
    elif search:
        assert (found.phase, found.op_type) == ('forward', 'Mean')
        assert 'zz:0 is as large as 3e+38, in rows 5, 6' in found.trouble
    else:
        assert found.phase == 'variable'
        assert 'what it was given was not looked at' in found.trouble
