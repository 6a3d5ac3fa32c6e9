"""What stock TensorFlow loses, and what slimguard keeps: whole trainings, from start to restart."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from tests.helpers.models import Linear, checkpoint_at, non_finite

tf1 = tf.compat.v1
slim = compat.import_slim()


def train_in_monitored_session(train_op, hook, logdir):
    stop = tf1.train.StopAtStepHook(last_step=8)
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=logdir,
        save_checkpoint_steps=1,
        save_checkpoint_secs=None,
        hooks=[hook, stop],
    ) as session:
        while not session.should_stop():
            session.run(train_op)


def train_with_slim(train_op, hook, logdir):
    slimguard.train(train_op, logdir, number_of_steps=8, log_every_n_steps=0, hooks=[hook])


@pytest.mark.parametrize('loop', [train_with_slim, train_in_monitored_session])
@pytest.mark.parametrize('check_numerics', [True, False])
@pytest.mark.parametrize('fail_on_nan_loss', [True, False])
def test_no_strategy_poisons_the_checkpoint(loop, check_numerics, fail_on_nan_loss, tmp_path):
    """The four rows of what stock TensorFlow does: clean weights, the last good step is saved."""
    logdir = str(tmp_path)
    model = Linear(bad=(5,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=check_numerics)
    hook = slimguard.NanLossHook(model.loss, fail_on_nan_loss=fail_on_nan_loss)
    if fail_on_nan_loss:
        with pytest.raises(slimguard.NanLossError):
            loop(train_op, hook, logdir)
    else:
        loop(train_op, hook, logdir)
    assert checkpoint_at(logdir) == (5, [])
    # A restart resumes there, and the batch that was bad is behind it.
    with tf.Graph().as_default():
        model = Linear()
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        loop(train_op, slimguard.NanLossHook(model.loss), logdir)
        assert model.batches.drawn == 3
    assert checkpoint_at(logdir) == (8, [])


def convnet():
    """One NaN pixel, in the batch of step 4, that ReLU and max-pooling may drop."""
    tf1.set_random_seed(0)
    rng = np.random.RandomState(0)
    images = rng.randn(64, 32, 32, 3).astype(np.float32)
    images[37, 5, 5, 0] = np.nan
    labels = rng.randint(0, 10, 64)
    dataset = tf1.data.Dataset.from_tensor_slices((images, labels)).batch(8).repeat()
    net, labels = tf1.data.make_one_shot_iterator(dataset).get_next()
    for _ in range(3):
        net = slim.max_pool2d(slim.conv2d(net, 16, 3), 2)
    logits = slim.fully_connected(slim.flatten(net), 10, activation_fn=None)
    return tf1.losses.sparse_softmax_cross_entropy(labels, logits)


@pytest.mark.parametrize('check_numerics', [True, False])
def test_a_nan_that_the_loss_never_shows_is_caught_when_it_comes(check_numerics):
    loss = convnet()
    train_op = slimguard.create_train_op(
        loss, tf1.train.MomentumOptimizer(0.01, 0.9), check_numerics=check_numerics
    )
    hook = slimguard.NanLossHook(loss, on_nan='skip')
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
        for _ in range(20):
            session.run(train_op)
            assert not non_finite(session.raw_session())
    # Step 4 is held, so the pixel comes round after seven good steps more.
    assert [incident.step for incident in hook.incidents] == [4, 11]
    assert 'gradient of Conv/weights' in hook.incidents[0].tensors


class TestTheUsersNote:
    """Both halves of the note that users follow, each on its own, with our names."""

    def build(self, bad=()):
        model = Linear(bad)
        train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
        return model.loss, train_op

    def test_the_hook_in_a_monitored_session(self):
        total_loss, train_op = self.build(bad=(3,))
        hooks = [slimguard.NanLossHook(total_loss, fail_on_nan_loss=True)]
        with pytest.raises(tf1.train.NanLossDuringTrainingError):
            with tf1.train.MonitoredTrainingSession(hooks=hooks) as sess:
                while not sess.should_stop():
                    sess.run(train_op)

    @pytest.mark.parametrize('with_init_op', [True, False])
    def test_the_training_loop(self, with_init_op):
        _, train_op = self.build()
        init_op = {'init_op': tf1.global_variables_initializer()} if with_init_op else {}
        final = slimguard.train(train_op, None, number_of_steps=3, **init_op)
        assert np.isfinite(final)


class TestEachBatchOnce:
    """Neither the gate, nor the hooks, nor an incident draws a batch of its own."""

    STEPS, BAD = 6, 2

    def train(self, x, feed=None):
        weights = tf1.get_variable('w', [1], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(weights * tf.cast(tf.math.log(x), tf.float32))
        train_op = slimguard.create_train_op(
            loss, tf1.train.GradientDescentOptimizer(0.1), check_numerics=False
        )
        seen = []

        def train_step_fn(session, op, global_step, kwargs):
            feed_dict = {x: feed(len(seen))} if feed else None
            loss_value, _, drawn = session.run([op, global_step, x], feed_dict)
            seen.append(float(drawn))
            return loss_value, len(seen) == self.STEPS

        hook = slimguard.NanLossHook(loss, on_nan='skip')
        slimguard.train(train_op, None, train_step_fn=train_step_fn, hooks=[hook])
        assert [incident.step for incident in hook.incidents] == [self.BAD]
        return seen

    def numbers(self):
        """1, 2, -1, 4, 5, 6: the logarithm of the third is NaN."""
        return [float(-1 if n == self.BAD else n + 1) for n in range(self.STEPS)]

    def test_of_a_dataset(self):
        dataset = tf1.data.Dataset.from_tensor_slices(np.array(self.numbers(), np.float32))
        x = tf1.data.make_one_shot_iterator(dataset).get_next()
        assert self.train(x) == self.numbers()

    def test_of_a_queue(self):
        queue = tf1.FIFOQueue(2, tf.float32, [[]])
        source = iter(self.numbers() + [1.0] * 100)
        enqueue = queue.enqueue(tf1.py_func(lambda: np.float32(next(source)), [], tf.float32))
        tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [enqueue]))
        assert self.train(queue.dequeue()) == self.numbers()

    def test_of_a_feed(self):
        x = tf1.placeholder(tf.float32, [])
        assert self.train(x, feed=lambda n: self.numbers()[n]) == self.numbers()
