"""tf.contrib.opt.MovingAverageOptimizer: our own, and on TensorFlow 1 beside that of contrib."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard.unedited.moving_average_optimizer import MovingAverageOptimizer
from tests.helpers.children import ROOT, forked_python

tf1 = tf.compat.v1

NATIVE = tf.__version__.startswith('1.')
SCRIPT = ROOT / 'tests' / 'data' / 'scripts' / 'train_moving_average.py'
CLASSES = [MovingAverageOptimizer]
if NATIVE:
    import tensorflow.contrib.opt as contrib_opt

    contribs = contrib_opt.MovingAverageOptimizer
    CLASSES.append(contribs)


# As under --tf1: else TensorFlow's averages of ref variables cannot be initialized.
pytestmark = pytest.mark.usefixtures('control_flow_v1')


def train(logdir, *options):
    """Runs the script. Returns the weights and their average at its end."""
    run = forked_python(
        '-m', 'slimguard', 'run', '--tf1', *options[:1], SCRIPT, '--train_dir', logdir, *options[1:]
    )
    assert run.returncode == 0, run.stderr
    _, weights, _, average = run.stdout.splitlines()[-1].split()
    return float(weights), float(average)


def expected(samples):
    """The same for a training on `samples`, one for each step."""
    values = averages = np.array([1.0, 0.0])  # weights and bias
    momenta = np.zeros(2)
    for x in np.array(samples) / 10:
        gradients = 2 * (values @ [x, 1] - 1) * np.array([x, 1])
        momenta = 0.5 * momenta + gradients
        values = values - 0.1 * momenta
        averages = 0.5 * averages + 0.5 * values
    return values[0], averages[0]


@pytest.mark.full
def test_a_script_trains_with_it_saves_the_averages_and_goes_on(tmp_path):
    result = train(tmp_path, '--on_nan=skip', '--number_of_steps=10', '--nan_sample=3')
    before = [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    np.testing.assert_allclose(result, expected(before), rtol=1e-4)
    # This run begins where the other ended, and its fourth batch makes it roll back to there.
    result = train(tmp_path, '--on_nan=rollback', '--number_of_steps=14', '--nan_sample=3')
    np.testing.assert_allclose(result, expected(before + [4, 5, 6, 7]), rtol=1e-4)


class Trained:
    """A small model after some steps: its session, optimizer, and values by name."""

    def __init__(self, make_optimizer, use_resource=False, **options):
        with tf1.variable_scope('', use_resource=use_resource):
            w = tf1.get_variable('w', initializer=tf.constant([3.0, 5.0]))
            b = tf1.get_variable('b', initializer=tf.constant([1.0, 1.0]))
            tf1.get_variable('unused', initializer=tf.constant([4.0, 4.0]))
        step = tf1.train.get_or_create_global_step()
        inner = tf1.train.MomentumOptimizer(0.1, 0.5)
        self.optimizer = make_optimizer(inner, average_decay=0.75, **options)
        loss = tf.reduce_sum(tf.square(tf.convert_to_tensor(w) * b))
        self.train_op = self.optimizer.minimize(loss, step)
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())
        for _ in range(3):
            self.session.run(self.train_op)
        self.values = self.read()

    def read(self):
        variables = tf1.global_variables()
        return {v.op.name: v for v in variables}, self.session.run(variables)

    def checkpoint(self, saver, folder):
        """The values in a checkpoint by `saver`, by name."""
        path = saver.save(self.session, str(folder / 'model'))
        reader = tf1.train.load_checkpoint(path)
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize('make_optimizer', CLASSES)
@pytest.mark.parametrize('use_resource, sequential_update', [(False, True), (True, False)])
def test_a_swapping_saver_saves_averages_and_brings_back_the_variables(
    tmp_path, make_optimizer, use_resource, sequential_update
):
    with tf.Graph().as_default():
        model = Trained(make_optimizer, use_resource, sequential_update=sequential_update)
        plain = model.checkpoint(tf1.train.Saver(), tmp_path)
        saver = model.optimizer.swapping_saver()
        swapped = model.checkpoint(saver, tmp_path)
        assert set(swapped) == set(plain)
        for name in 'w', 'b':
            average = name + '/ExponentialMovingAverage'
            assert np.any(plain[name] != plain[average])
            np.testing.assert_array_equal(swapped.pop(name), plain.pop(average))
            np.testing.assert_array_equal(swapped.pop(average), plain.pop(name))
        for name, value in plain.items():
            np.testing.assert_array_equal(swapped[name], value)
        assert plain['global_step'] == 3
        _, before = model.values
        model.session.run(tf1.global_variables_initializer())
        saver.restore(model.session, str(tmp_path / 'model'))
        np.testing.assert_equal(model.read()[1], before)


@pytest.mark.parametrize('make_optimizer', CLASSES)
@pytest.mark.parametrize('sequential_update', [True, False])
def test_the_averages_wait_for_the_update_if_told_so(make_optimizer, sequential_update):
    with tf.Graph().as_default():
        variable = tf1.get_variable('v', initializer=8.0)
        optimizer = make_optimizer(
            tf1.train.GradientDescentOptimizer(1.0), sequential_update=sequential_update
        )
        train_op = optimizer.minimize(4 * variable)
        (averaging,) = [op for op in train_op.control_inputs if 'Average' in op.name]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(averaging)
            assert session.run(variable) == (4.0 if sequential_update else 8.0)


@pytest.mark.parametrize('make_optimizer', CLASSES)
def test_a_saver_of_some_variables_takes_both_or_neither(tmp_path, make_optimizer):
    with tf.Graph().as_default():
        model = Trained(make_optimizer)
        variables, _ = model.values
        plain = model.checkpoint(tf1.train.Saver(), tmp_path)
        names = ['w', 'w/ExponentialMovingAverage', 'unused']
        for some in ([variables[name] for name in names], {n: variables[n] for n in names}):
            saver = model.optimizer.swapping_saver(some, max_to_keep=1, name='mine')
            swapped = model.checkpoint(saver, tmp_path)
            assert set(swapped) == set(names)
            np.testing.assert_array_equal(swapped['w'], plain['w/ExponentialMovingAverage'])
        with pytest.raises(ValueError, match='w/ExponentialMovingAverage'):
            model.optimizer.swapping_saver([variables['w']])


def test_a_partitioned_variable_is_refused():
    with tf1.variable_scope('', partitioner=tf1.fixed_size_partitioner(2)):
        w = tf1.get_variable('w', initializer=tf.ones([4]))
    optimizer = MovingAverageOptimizer(tf1.train.GradientDescentOptimizer(1.0))
    optimizer.minimize(tf.reduce_sum(tf.convert_to_tensor(w)))
    with pytest.raises(ValueError, match='partitioned'):
        optimizer.swapping_saver()


@pytest.mark.parametrize('make_optimizer', CLASSES)
def test_a_swapping_saver_before_minimize_is_refused(make_optimizer):
    optimizer = make_optimizer(tf1.train.GradientDescentOptimizer(1.0))
    with pytest.raises(RuntimeError, match='apply_gradients'):
        optimizer.swapping_saver()


def test_its_slots_are_those_of_the_optimizer_inside():
    with tf.Graph().as_default():
        model = Trained(MovingAverageOptimizer)
        variables, _ = model.values
        assert model.optimizer.get_slot_names() == ['momentum']
        assert model.optimizer.get_slot(variables['w'], 'momentum') is variables['w/Momentum']
        assert set(model.optimizer.variables()) == {
            variables['w/Momentum'],
            variables['b/Momentum'],
        }
