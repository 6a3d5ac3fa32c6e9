"""FiniteSaver: a checkpoint that is not finite never becomes the newest."""

import os
import resource
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.checkpoints import checkpoint_files, checkpoint_reader
from slimguard.checkpoints.finite_saver import last_published
from slimguard.graph.sessions import SessionWrapper
from tests.helpers.models import Linear, LogLines, records_in, train_quietly

tf1 = tf.compat.v1
slim = compat.import_slim()

V1 = tf1.train.SaverDef.V1
REF_OR_RESOURCE = pytest.mark.parametrize('use_resource', [False, True])


class Weights:
    """A variable that a test can set to any value."""

    def __init__(self, use_resource=False, dtype=tf.float32, size=3):
        self.step = tf1.train.get_or_create_global_step()
        self.w = tf1.get_variable(
            'w', [size], dtype, tf1.ones_initializer(), use_resource=use_resource
        )
        self.value = tf1.placeholder(dtype, [])
        self.assign = self.w.assign(tf.fill([size], self.value)).op

    def set(self, session, value):
        session.run(self.assign, {self.value: value})


def newest(logdir):
    path = tf1.train.latest_checkpoint(str(logdir))
    return path and os.path.basename(path)


@REF_OR_RESOURCE
@pytest.mark.parametrize(
    'settings',
    [{}, {'sharded': True}, {'write_version': V1}, {'write_version': V1, 'sharded': True}],
)
@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_a_bad_variable_is_not_saved_and_what_was_saved_stays(folder, settings, use_resource, bad):
    around = os.listdir(os.curdir)
    weights = Weights(use_resource)
    saver = slimguard.FiniteSaver(**settings)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        good = saver.save(session, str(folder / 'm'), 1)
        assert good == tf1.train.latest_checkpoint(str(folder))
        before = sorted(os.listdir(str(folder)))
        weights.set(session, bad)
        with LogLines('slimguard') as lines:
            assert saver.save(session, str(folder / 'm'), 2) is None
        assert tf1.train.latest_checkpoint(str(folder)) == good
        assert saver.last_checkpoints == [os.path.abspath(good)]
        assert sorted(os.listdir(str(folder))) == before + ['slimguard']
        saver.restore(session, good)
        assert (session.run(weights.w) == 1).all()
        newer = saver.save(session, str(folder / 'm'), 3)
        assert os.path.abspath(newer) == saver.last_checkpoints[-1]
    (line,) = lines
    assert 'm-2 is refused, not finite: w. The newest is still ' + os.path.abspath(good) in line
    (incident,) = saver.refused
    assert (incident.step, incident.tensors, incident.action) == (2, ('w',), 'save refused')
    (record,) = records_in(str(folder))
    assert record['tensors'] == ['w'] and record['step'] == 2
    assert os.listdir(os.curdir) == around  # a save op without a fed path would write here


def _told_at_a_refusal(saver, session, folder):
    with LogLines('slimguard') as lines:
        assert saver.save(session, str(folder / 'bad')) is None
    (line,) = lines
    return line


def test_the_newest_is_named_also_by_a_saver_that_lists_none(folder):
    weights = Weights()
    saver = slimguard.FiniteSaver(max_to_keep=0)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        weights.set(session, np.inf)
        assert 'None was saved before.' in _told_at_a_refusal(saver, session, folder)
        weights.set(session, 1)
        saver.save(session, str(folder / 'm'), 1)
        weights.set(session, np.inf)
        still = 'The newest is still %s.' % os.path.abspath(str(folder / 'm-1'))
        assert still in _told_at_a_refusal(saver, session, folder)


@pytest.mark.full
@REF_OR_RESOURCE
@pytest.mark.parametrize('settings', [{}, {'sharded': True}])
def test_what_no_gate_keeps_finite_is_named_as_such(folder, settings, use_resource):
    """Such as `best_loss = tf.Variable(np.inf)`, or a running mean that a separate run updates."""
    tf1.get_variable_scope().set_use_resource(use_resource)
    model = Linear()
    with tf1.variable_scope('averaged'):
        mean = slim.batch_norm(model.batches.x, is_training=True, updates_collections=None)
    slimguard.create_train_op(
        model.loss + tf.reduce_sum(mean), tf1.train.AdamOptimizer(), check_numerics=False
    )
    best = tf1.get_variable('best', initializer=float('inf'))
    saver = slimguard.FiniteSaver(**settings)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        with LogLines() as lines:
            assert saver.save(session, str(folder / 'm'), 1) is None
        (line,) = lines
        told = ' None was saved before. No guarded train op writes best: guard what does, set it '
        assert line.endswith(told + 'to a finite number, or leave it out of the saver.')
        assert saver.refused[-1].advice in line
        (record,) = records_in(str(folder))
        assert record['advice'] == saver.refused[-1].advice

        session.run(best.assign(1.0))
        assert saver.save(session, str(folder / 'm'), 2) is not None
        # Variables that a gate writes, also after the loss. A restore or a script made them bad.
        written = [v for v in tf1.global_variables() if v.dtype.base_dtype.is_floating]
        session.run([v.assign(v + np.nan) for v in written if v is not best])
        assert saver.save(session, str(folder / 'm'), 3) is None
        assert saver.refused[-1].advice is None
        assert len(saver.refused[-1].tensors) == len(written) - 1


@REF_OR_RESOURCE
@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_large_values_are_saved(folder, dtype, use_resource):
    weights = Weights(use_resource, dtype)
    saver = slimguard.FiniteSaver()
    with tf1.Session() as session:
        weights.set(session, dtype.max)
        session.run(weights.step.initializer)
        assert saver.save(session, str(folder / 'm')) is not None
        weights.set(session, np.inf)
        assert saver.save(session, str(folder / 'n')) is None


def test_a_saver_that_exists_is_wrapped_with_its_settings_and_its_list(folder):
    Weights()
    inner = tf1.train.Saver(max_to_keep=2, pad_step_number=True)
    saver = slimguard.FiniteSaver(inner)
    assert isinstance(saver, tf1.train.Saver)
    assert saver.saver_def is inner.saver_def
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for step in range(4):
            saver.save(session, str(folder / 'm'), step)
    assert [os.path.basename(p) for p in inner.last_checkpoints] == ['m-00000002', 'm-00000003']
    assert saver.last_checkpoints == inner.last_checkpoints
    assert not (folder / 'm-00000001.index').exists()
    saver.recover_last_checkpoints(inner.last_checkpoints[:1])
    assert len(inner.last_checkpoints) == 1
    with tf.Graph().as_default():  # stock TensorFlow can import the graph that it wrote
        restored = tf1.train.import_meta_graph(str(folder / 'm-00000003.meta'))
        with tf1.Session() as session:
            restored.restore(session, str(folder / 'm-00000003'))


def test_it_takes_no_settings_beside_a_saver_and_adds_no_ops_to_the_graph(graph, folder):
    weights = Weights()
    with pytest.raises(ValueError, match='was given a Saver and max_to_keep beside it'):
        slimguard.FiniteSaver(tf1.train.Saver(), max_to_keep=3)
    inner = tf1.train.Saver()
    graph.finalize()
    saver = slimguard.FiniteSaver(inner)
    with tf1.Session() as session:
        session.run(weights.step.initializer)
        weights.set(session, np.nan)
        assert saver.save(session, str(folder / 'm')) is None


def test_what_cannot_be_read_back_is_refused(folder, monkeypatch):
    """As if another process wrote the files to a disk of its own."""
    Weights()
    saver = slimguard.FiniteSaver()

    class Elsewhere(SessionWrapper):
        def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
            return str(folder / 'm-2').encode()

    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        good = saver.save(session, str(folder / 'm'), 1)
        with LogLines('slimguard') as lines:
            assert saver.save(Elsewhere(session), str(folder / 'm'), 2) is None
    (line,) = lines
    assert 'm-2 is refused, truncated: ' in line
    assert tf1.train.latest_checkpoint(str(folder)) == good


@pytest.mark.full
@REF_OR_RESOURCE
def test_a_nan_that_comes_while_it_saves_is_not_published(folder, use_resource):
    """Another thread writes a NaN at any moment, as an optimizer without a gate does."""
    weights = Weights(use_resource, size=2000000)
    saver = slimguard.FiniteSaver(max_to_keep=None)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for number in range(12):
            weights.set(session, 1.0)
            delay = threading.Timer(0.002 * number, weights.set, (session, np.nan))
            delay.start()
            path = str(folder / 'm')
            while path is not None:
                path = saver.save(session, str(folder / 'm'), number, write_meta_graph=False)
                assert path is None or checkpoint_reader.read(path).is_good
            delay.join()


@pytest.mark.full
def test_what_the_gate_takes_back_is_not_published_meanwhile(folder):
    """The forward pass writes a NaN, and the gate undoes it; a save may come in between."""
    bad = tf1.placeholder_with_default(np.float32(np.nan), [])
    x = tf.fill([4, 200000], bad)
    net = slim.batch_norm(x, updates_collections=None, is_training=True, scope='bn')
    weights = tf1.get_variable('w', [200000])
    loss = tf.reduce_mean(net * weights)
    train_op = slimguard.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.1))
    watched = slimguard.gate.gate_of(train_op).watched
    saver = slimguard.FiniteSaver(max_to_keep=None)
    saved = []
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        done = threading.Event()

        def save():
            for number in range(25):
                path = saver.save(session, str(folder / 'm'), number, write_meta_graph=False)
                saved.append(path)
            done.set()

        thread = threading.Thread(target=save)
        thread.start()
        while not done.is_set():
            session.run(train_op, {watched: True})
        thread.join()
    published = [path for path in saved if path is not None]
    assert published
    assert all(checkpoint_reader.read(path).is_good for path in published)


def poison(weights):
    """A train op without a gate, which makes the weights NaN in its third step."""
    step = weights.step.assign_add(1)
    value = tf.where(step >= 3, tf.constant(np.nan), tf.constant(1.0))
    return weights.w.assign(tf.fill([3], value)).op


@pytest.mark.parametrize('how', ['scaffold', 'saver hook', 'NanLossHook'])
def test_it_is_the_saver_of_a_monitored_session(folder, how):
    weights = Weights()
    train_op = poison(weights)
    logdir = str(folder)
    arguments = {'checkpoint_dir': logdir, 'save_checkpoint_steps': 1}
    loss = tf.reduce_sum(tf.zeros([3]))
    if how == 'scaffold':
        arguments['scaffold'] = tf1.train.Scaffold(saver=slimguard.FiniteSaver())
    elif how == 'saver hook':
        saver = slimguard.FiniteSaver()
        arguments = {'hooks': [tf1.train.CheckpointSaverHook(logdir, save_steps=1, saver=saver)]}
    else:
        arguments['hooks'] = [slimguard.NanLossHook(loss, logdir=logdir)]
    with tf1.train.MonitoredTrainingSession(**arguments) as session:
        for _ in range(5):
            session.run(train_op)
    assert newest(folder) == 'model.ckpt-2'


class TestFullDisk:
    """A limit on the size of files stands in for a full disk: writing fails in the same place."""

    @pytest.fixture
    def full(self):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)

        def fill():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000000, before[1]))

        yield fill
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    @pytest.mark.parametrize('settings', [{}, {'sharded': True}])
    def test_the_previous_checkpoint_stays_and_the_rest_is_cleared(self, folder, full, settings):
        weights = Weights(size=1000000)
        saver = slimguard.FiniteSaver(**settings)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            good = saver.save(session, str(folder / 'm'), 1)
            before = sorted(os.listdir(str(folder)))
            full()
            with LogLines() as lines, pytest.raises(tf.errors.OpError):
                saver.save(session, str(folder / 'm'), 2)
            assert sorted(os.listdir(str(folder))) == before
            assert slimguard.latest_finite_checkpoint(str(folder)) == os.path.abspath(good)
            assert tf1.train.latest_checkpoint(str(folder)) == good
            saver.restore(session, good)
            weights.set(session, 1.0)
        (line,) = [line for line in lines if 'm-2 could not be written' in line]
        assert line.endswith('File too large')

    @pytest.mark.full
    def test_a_training_says_what_happened(self, folder, full):
        model = Linear()
        tf1.get_variable('large', [1000000])
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        train_quietly(train_op, folder, number_of_steps=3)
        with tf.Graph().as_default():
            model = Linear()
            tf1.get_variable('large', [1000000])
            train_op = slimguard.create_train_op(model.loss, model.optimizer)
            full()
            with LogLines() as lines, pytest.raises(tf.errors.OpError):
                train_quietly(train_op, folder)
        assert newest(folder) == 'model.ckpt-3'
        assert any('could not be written' in line for line in lines)


class TestSavingAStepAgain:
    """As after a restart. A save replaces two files, and a kill may come between."""

    class Dies(SessionWrapper):
        """A session in which the process dies when the first of the two files is replaced."""

        def __init__(self, session, path):
            SessionWrapper.__init__(self, session)
            self._path = path

        def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
            result = self._session.run(fetches, feed_dict)
            if any(isinstance(value, str) for value in (feed_dict or {}).values()):  # a path
                os.remove(self._path + '.index')
                raise KeyboardInterrupt
            return result

    def test_whatever_happens_the_newest_is_good(self, folder):
        weights = Weights()
        saver = slimguard.FiniteSaver()
        prefix = str(folder / 'm')
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            first, second = [saver.save(session, prefix, step) for step in (1, 2)]
            weights.set(session, 5.0)
            with pytest.raises(KeyboardInterrupt):
                saver.save(self.Dies(session, second), prefix, 2)
            assert tf1.train.latest_checkpoint(str(folder)) == second
            assert saver.last_checkpoints == [os.path.abspath(p) for p in (first, second)]
            saver.restore(session, second)
            assert (session.run(weights.w) == 1).all()
        assert not list(folder.glob('*spare*'))

    def test_all_is_as_it_was_when_nothing_happens(self, folder):
        weights = Weights()
        saver = slimguard.FiniteSaver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            saver.save(session, str(folder / 'm'), 2)
            before = sorted(os.listdir(str(folder)))
            weights.set(session, 5.0)
            again = saver.save(session, str(folder / 'm'), 2)
            assert os.path.abspath(again) == saver.last_checkpoints[0]
            assert sorted(os.listdir(str(folder))) == before
            weights.set(session, np.nan)
            for step, settings in ((2, {}), (1, {'write_state': False})):
                weights.set(session, 5.0)
                saver.save(session, str(folder / 'm'), step, **settings)
                weights.set(session, np.nan)
                assert saver.save(session, str(folder / 'm'), step, **settings) is None
                assert tf.train.load_variable(str(folder / ('m-%d' % step)), 'w')[0] == 5.0
        assert newest(folder) == 'm-2'
        assert not list(folder.glob('*spare*'))

    @pytest.mark.parametrize('value', [np.nan, 7.0])
    def test_a_good_one_that_cannot_be_kept_is_not_saved_over(self, folder, monkeypatch, value):
        def fail(path, other):
            raise OSError(28, 'No space left on device')

        monkeypatch.setattr(checkpoint_files, 'link', fail)
        weights = Weights()
        saver = slimguard.FiniteSaver()
        with tf1.Session() as session, LogLines() as lines:
            session.run(tf1.global_variables_initializer())
            saver.save(session, str(folder / 'm'), 2)
            weights.set(session, value)
            published = last_published()
            saver.save(session, str(folder / 'm'), 2)
            assert last_published() == published
        assert tf.train.load_variable(str(folder / 'm-2'), 'w')[0] == 1.0
        assert newest(folder) == 'm-2'
        (line,) = [line for line in lines if 'm-2 is there already, and is not saved again' in line]
        assert 'No space left' in line


def test_a_save_that_fails_leaves_what_was_there_and_nothing_new(folder):
    """The session fails before it has written anything, or after it has written all files."""

    class Fails(SessionWrapper):
        writes = False

        def run(self, *args, **kwargs):
            if self.writes:
                self._session.run(*args, **kwargs)
            raise tf.errors.UnavailableError(None, None, 'Socket closed')

    weights = Weights()
    saver = slimguard.FiniteSaver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        saver.save(session, str(folder / 'm'), 1)
        before = sorted(os.listdir(str(folder)))
        weights.set(session, 2)
        for Fails.writes in (False, True):
            for step in (1, 2):
                with LogLines() as lines, pytest.raises(tf.errors.UnavailableError):
                    saver.save(Fails(session), str(folder / 'm'), step)
                assert lines[-1].endswith('m-%d could not be written: Socket closed' % step)
                assert newest(folder) == 'm-1' and sorted(os.listdir(str(folder))) == before
        saver.restore(session, str(folder / 'm-1'))
        assert (session.run(weights.w) == 1).all()
