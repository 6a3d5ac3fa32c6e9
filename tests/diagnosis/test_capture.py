"""The capture: what a bad step drew is kept, exactly; good steps keep nothing and draw nothing."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard import compat, gate
from slimguard.diagnosis.capture import BadStep, Capture
from slimguard.diagnosis.diagnose import diagnose
from tests.helpers.gate_models import initialize, new_session
from tests.helpers.models import Batches

tf1 = tf.compat.v1


class Watched:
    """A guarded and captured training in a session, on a graph that is finalized."""

    def __init__(self, loss, train_op=None, session=None):
        if train_op is None:
            step = tf1.train.get_or_create_global_step()
            train_op = tf1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
        self.gate = gate.gate_of(gate.guard(train_op, loss))
        self.capture = Capture(self.gate)
        self.names = [t.name for t in self.capture.sources]
        self.session = session or new_session()
        initialize(self.session)
        graph = tf1.get_default_graph()
        self.session.run([op for op in graph.get_operations() if op.type == 'MakeIterator'])
        graph.finalize()

    def step(self, feed=None, fetches=()):
        """Runs one step; returns whether it was written, and the values of `fetches`."""
        feed = dict(feed or {})
        feed[self.gate.watched] = True
        everything = [self.gate.written, list(fetches), self.capture.row]
        written, values, _ = self.session.run(everything, feed)
        return written, values

    def take(self):
        return self.capture.take(self.session)


def weight(shape):
    return tf1.get_variable('w', shape, initializer=tf1.ones_initializer())


def loss_of(x):
    return tf.reduce_mean(tf.matmul(x, weight([x.shape.as_list()[1], 1])))


def iterator_of(*batches):
    dataset = tf.data.Dataset.from_tensor_slices(np.stack(batches).astype(np.float32))
    return tf1.data.make_initializable_iterator(dataset).get_next()


def good(step=0):
    return np.random.RandomState(step).randn(4, 3).astype(np.float32)


def bad(step=0):
    batch = good(step)
    batch[1, 2] = np.nan
    return batch


def test_the_batch_of_a_bad_step_is_kept_and_no_other():
    x = iterator_of(good(0), bad(1), good(2), bad(3))
    watched = Watched(loss_of(x))
    for step, batch in enumerate([None, bad(1), None, bad(3)]):
        written, _ = watched.step()
        taken = watched.take()
        assert written == (batch is None), step
        if batch is None:
            assert taken == {}
        else:
            np.testing.assert_array_equal(taken[x.name], batch)
    assert watched.take() == {}


def test_nothing_is_drawn_for_it():
    batches = Batches(bad=[2])
    watched = Watched(loss_of(batches.x))
    for _ in range(4):
        watched.step()
    limits = {'slimguard/gate/max_loss:0', 'slimguard/gate/max_half_square:0'}
    assert watched.take().keys() == {batches.x.name} | limits
    assert batches.drawn == 4


def test_a_calm_step_runs_nothing_for_it():
    watched = Watched(loss_of(iterator_of(good(), bad())))
    ran = []
    for _ in range(2):
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        watched.session.run([watched.gate.step, watched.capture.row], None, options, metadata)
        nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
        names = {node.node_name.partition(':')[0] for node in nodes}  # TF 1.15 adds ':Cast'
        names = [name for name in names if name.startswith('slimguard/capture/')]
        ran.append({watched.gate.bad.graph.get_operation_by_name(name).type for name in names})
    assert ran[0] <= {'Switch', 'Merge', 'Cast', 'Pack', 'Const', 'ConcatV2'}  # of the row
    assert 'Stage' in ran[1]


def test_a_second_bad_step_replaces_the_first_and_does_not_wait():
    x = iterator_of(bad(0), bad(1), bad(2))
    watched = Watched(loss_of(x))
    ops = [op for op in x.graph.get_operations() if op.type == 'StageSize']
    sizes = [op.outputs[0] for op in ops if op.name.startswith('slimguard/capture/')]
    for _ in range(3):
        watched.step()
        assert watched.session.run(sizes) == [1]
    np.testing.assert_array_equal(watched.take()[x.name], bad(2))
    assert watched.session.run(sizes) == [0]
    assert watched.take() == {}


def test_what_chance_drew_is_kept():
    x = iterator_of(bad())
    noise = tf.random.normal([4, 3])
    dropped = tf1.nn.dropout(x + noise, rate=0.5)
    watched = Watched(loss_of(dropped))
    _, (drawn, kept) = watched.step(fetches=[noise, dropped])
    values = watched.take()
    feed = {name: value for name, value in values.items()}
    assert {op.type for op in watched.capture.draws} >= {'RandomStandardNormal', 'RandomUniform'}
    again = watched.session.run([noise, dropped], feed)
    np.testing.assert_array_equal(again[0], drawn)
    np.testing.assert_array_equal(again[1], kept)


def test_a_feed_is_kept_even_if_its_buffer_is_used_again():
    x = tf1.placeholder(tf.float32, [4, 3], name='x')
    training = tf1.placeholder_with_default(True, [], name='training')
    watched = Watched(loss_of(tf.where(tf.fill([4, 3], training), x, -x)))
    buffer = bad(7)
    watched.step({x: buffer})
    taken = watched.take()
    buffer[:] = 0
    np.testing.assert_array_equal(taken['x:0'], bad(7))
    assert taken['training:0'] == np.True_


def test_strings_and_sparse_batches_are_kept():
    dataset = tf.data.Dataset.from_tensors(
        {
            'names': tf.constant(['a', 'bc']),
            'words': tf.sparse.SparseTensor([[0, 1], [1, 0]], [np.nan, 2.0], [2, 3]),
        }
    )
    batch = tf1.data.make_one_shot_iterator(dataset).get_next()
    lengths = tf.cast(tf.strings.length(batch['names']), tf.float32)
    rows = tf.sparse.reduce_sum(batch['words'], axis=1)
    rows.set_shape([2])
    watched = Watched(loss_of(tf.stack([lengths, rows], 1)))
    watched.step()
    values = list(watched.take().values())
    assert any(value.tolist() == [b'a', b'bc'] for value in values)
    assert any(np.isnan(value).any() for value in values if value.dtype.kind == 'f')


def test_of_two_inputs_in_a_cond_the_one_taken_is_kept(control_flow):
    first = Batches(bad=[1])
    second = iterators(good(0), bad(5))
    which = tf1.placeholder(tf.bool, [], name='which')
    x = tf1.cond(which, lambda: draw(first), second.get_next, name='pick')
    x.set_shape([4, 3])
    watched = Watched(loss_of(x))
    for use_first in (True, False, True, False):
        written, (used,) = watched.step({which: use_first}, [x])
        values = watched.take()
        assert (values == {}) == written
    # The last step: each input was drawn in two.
    found = diagnose(BadStep(watched.session, watched.capture, values))
    assert (found.phase, found.non_finite.rows) == ('input', [1])
    np.testing.assert_array_equal(values[found.tensor], used)
    assert len(values) == 2 + len(watched.capture.gate.limits)  # none from the other branch
    assert first.drawn == 2


def iterators(*batches):
    dataset = tf.data.Dataset.from_tensor_slices(np.stack(batches).astype(np.float32))
    return tf1.data.make_initializable_iterator(dataset)


def draw(batches):
    return tf1.py_func(batches._draw, [], tf.float32, stateful=True)


def test_queues_of_slim_are_kept(tmp_path):
    slim = compat.import_slim()
    path = str(tmp_path / 'rows.tfrecord')
    with tf1.python_io.TFRecordWriter(path) as writer:
        for row in bad():
            values = tf.train.Feature(float_list=tf.train.FloatList(value=row))
            features = tf.train.Features(feature={'x': values})
            writer.write(tf.train.Example(features=features).SerializeToString())
    decoder = slim.tfexample_decoder.TFExampleDecoder(
        {'x': tf1.FixedLenFeature([3], tf.float32)}, {'x': slim.tfexample_decoder.Tensor('x')}
    )
    dataset = slim.dataset.Dataset(path, tf1.TFRecordReader, decoder, 4, {'x': 'three numbers'})
    provider = slim.dataset_data_provider.DatasetDataProvider(dataset, shuffle=False)
    (x,) = provider.get(['x'])
    x = tf1.train.batch([x], 4)
    watched = Watched(loss_of(x))
    coordinator = tf1.train.Coordinator()
    tf1.train.start_queue_runners(watched.session, coordinator)
    try:
        written, (used,) = watched.step(fetches=[x])
        assert not written
        np.testing.assert_array_equal(watched.take()[x.name], used)
    finally:
        coordinator.request_stop()
        watched.session.close()


def test_a_counter_that_picks_the_batch_is_kept():
    counter = tf1.get_variable('counter', [], tf.int32, tf1.zeros_initializer(), trainable=False)
    data = tf.constant(np.stack([good(0), bad(1)]))
    x = tf.gather(data, tf1.assign_add(counter, 1) - 1)
    later = tf1.assign_add(counter, 5)
    watched = Watched(loss_of(x))
    assert watched.step()[0]
    assert not watched.step()[0]
    watched.session.run(later.op)
    again = watched.session.run(x, watched.take())
    np.testing.assert_array_equal(again, bad(1))
    assert watched.session.run(watched.capture.reads['counter']) == 7  # it did not count again


def test_several_devices():
    x = iterator_of(bad())
    with tf.device('/cpu:1'):
        noise = tf.random.uniform([4, 3])
        loss = loss_of(x * noise)
    watched = Watched(loss, session=new_session(device_count={'CPU': 2}))
    _, (drawn,) = watched.step(fetches=[noise])
    again = watched.session.run(noise, watched.take())
    np.testing.assert_array_equal(again, drawn)


def test_what_is_drawn_in_a_loop_is_named(control_flow_v1):
    x = iterator_of(bad())

    def body(i, total):
        return i + 1, total * tf.random.uniform([4, 3])

    _, total = tf1.while_loop(lambda i, _: i < 2, body, [0, x])
    watched = Watched(loss_of(total))
    assert [op.type for op in watched.capture.missing] == ['RandomUniform']
    assert not watched.step()[0]
    np.testing.assert_array_equal(watched.take()[x.name], bad())


def test_finite_steps_compute_the_same_bits():
    def train(capture):
        with tf.Graph().as_default():
            tf1.set_random_seed(3)
            x = tf1.nn.dropout(iterator_of(*[good(i) for i in range(5)]), rate=0.3)
            loss = loss_of(x)
            train_op = gate.guard(tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss), loss)
            fetches = [train_op]
            if capture:
                fetches.append(Capture(gate.gate_of(train_op)).row)
            with new_session() as session:
                initialize(session)
                graph = tf1.get_default_graph()
                session.run([op for op in graph.get_operations() if op.type == 'MakeIterator'])
                for _ in range(5):
                    session.run(fetches)
                return session.run(tf1.trainable_variables()[0]).tobytes()

    assert train(True) == train(False)


def test_a_finalized_graph_is_an_error():
    loss = loss_of(iterator_of(good()))
    train_op = gate.guard(tf1.train.GradientDescentOptimizer(0.1).minimize(loss), loss)
    tf1.get_default_graph().finalize()
    with pytest.raises(RuntimeError, match='finalized'):
        Capture(gate.gate_of(train_op))
