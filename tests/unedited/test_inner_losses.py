"""Scripts that make the loss inside of the loop or branch of v1 that trains it."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import LogLines, records_in

tf1 = tf.compat.v1
STEPS, BAD = 6, 4

pytestmark = pytest.mark.usefixtures('control_flow_v1')


class Script:
    """A weight that is trained inside of a loop or a branch."""

    def __init__(self, use_resource):
        self.x = tf1.placeholder(tf.float32, [None, 4])
        self.trains = tf1.placeholder(tf.bool, [])
        one = tf1.ones_initializer()
        self.w = tf1.get_variable('w', [4, 1], initializer=one, use_resource=use_resource)
        self.losses = []

    def minimize(self):
        self.losses.append(tf.reduce_mean(tf.square(tf.matmul(self.x, self.w) - 1.0)))
        return tf1.train.GradientDescentOptimizer(0.1).minimize(self.losses[-1])

    def minimize_and_return_loss(self):
        with tf.control_dependencies([self.minimize()]):
            return tf.identity(self.losses[-1])

    def run(self, fetch, bad=()):
        """The weight after each step; with a condition, only every other step trains."""
        random = np.random.RandomState(0)
        weights = []
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for number in range(STEPS):
                batch = random.randn(8, 4)
                if number in bad:
                    batch[1] = np.nan
                session.run(fetch, {self.x: batch, self.trains: number % 2 == 0})
                weights.append(session.run(self.w).tobytes())
        return weights


def only_trains_in_a_loop(script):
    def body(i):
        with tf.control_dependencies([script.minimize()]):
            return i + 1

    return tf1.while_loop(lambda i: i < 3, body, [0], parallel_iterations=1)


def returns_the_loss_of_a_loop(script):
    def body(i, _):
        loss = script.minimize_and_return_loss()
        return i + 1, loss

    return tf1.while_loop(lambda i, _: i < 3, body, [0, 0.0], parallel_iterations=1)[1]


def only_trains_in_a_branch(script):
    return tf1.cond(script.trains, script.minimize, tf.no_op)


def returns_the_loss_of_a_branch(script):
    return tf1.cond(script.trains, script.minimize_and_return_loss, lambda: tf.constant(0.0))


def trains_in_a_branch_in_a_loop(script):
    def body(i):
        with tf.control_dependencies([only_trains_in_a_branch(script)]):
            return i + 1

    return tf1.while_loop(lambda i: i < 3, body, [0], parallel_iterations=1)


def knows_its_loss_in_a_branch(script):
    """The LOSSES collection has the loss."""

    def train():
        update = script.minimize()
        tf1.losses.add_loss(script.losses[-1])
        return update

    return tf1.cond(script.trains, train, tf.no_op)


SCRIPTS = [
    only_trains_in_a_loop,
    returns_the_loss_of_a_loop,
    only_trains_in_a_branch,
    returns_the_loss_of_a_branch,
    trains_in_a_branch_in_a_loop,
    knows_its_loss_in_a_branch,
]


def run(make, use_resource, tmp_path=None, bad=(), **kwargs):
    """The weight after each step of a script, which is guarded if `tmp_path` is given."""
    with tf1.Graph().as_default():
        if tmp_path is None:
            script = Script(use_resource)
            return script.run(make(script), bad)
        with slimguard.instrument('skip', logdir=str(tmp_path), capture=False, **kwargs):
            script = Script(use_resource)
            return script.run(make(script), bad)


@pytest.mark.full
@pytest.mark.parametrize(
    'make, use_resource',
    [*zip(SCRIPTS, [False, True] * 3)],
    ids=lambda each: getattr(each, '__name__', None),
)
def test_good_steps_keep_their_bits_and_a_bad_one_is_undone(make, use_resource, tmp_path):
    plain = run(make, use_resource)
    weights = run(make, use_resource, tmp_path, bad=[BAD])
    assert weights[:BAD] == plain[:BAD] and plain[-1] != plain[0]
    assert weights[BAD] == weights[BAD - 1]
    assert np.isfinite(np.frombuffer(weights[-1], np.float32)).all()
    (record,) = records_in(tmp_path)
    assert record['action'] == 'skip' and not record['state_lost']


@pytest.mark.parametrize('make', [only_trains_in_a_loop, only_trains_in_a_branch])
def test_max_loss_says_once_that_it_is_compared_with_nothing(make, tmp_path):
    with LogLines() as lines:
        run(make, True, tmp_path, max_loss=1e6)
    (line,) = [line for line in lines if 'neither checked nor compared with max_loss' in line]
    assert 'is made inside of a loop or branch. Its gradients' in line


@pytest.mark.parametrize('make', [returns_the_loss_of_a_loop, knows_its_loss_in_a_branch])
def test_guard_refuses_such_a_loss_and_says_why(make):
    script = Script(use_resource=False)
    train_op = make(script)
    with pytest.raises(ValueError, match='inside of a tf.while_loop, or of a branch of a tf.cond'):
        slimguard.guard(train_op, loss=script.losses[-1])


def test_guard_takes_the_loss_of_the_branch_that_it_is_called_in():
    script = Script(False)

    def train():
        update = script.minimize()
        return slimguard.guard(update, loss=script.losses[-1])

    weights = script.run(tf1.cond(script.trains, train, tf.no_op), bad=[BAD])
    assert weights[BAD] == weights[BAD - 1] != weights[0]
