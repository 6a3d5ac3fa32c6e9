"""What a bad step looks like where nobody catches it: what was bad comes before pages of frames."""

import os
import traceback

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.children import forked_python

tf1 = tf.compat.v1
OURS = os.path.dirname(slimguard.__file__)

SCRIPT = """\
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()
x = tf1.placeholder(tf.float32, [2], name='pixels')
w = tf1.get_variable('w', initializer=[1.0, 2.0])
loss = tf.reduce_sum(w * x, name='my_loss')
train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)


def step(session, value):
    session.run(train_op, {x: [1.0, value]})


with tf1.Session() as session:
    session.run(tf1.global_variables_initializer())
    step(session, 1.0)
    step(session, np.nan)
"""


def bad_train_op(check_numerics=False):
    w = tf1.get_variable('w', initializer=[1.0, 2.0])
    loss = tf.reduce_sum(w * np.array([1.0, np.nan], np.float32), name='my_loss')
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    tf1.train.get_or_create_global_step()
    return loss, slimguard.create_train_op(loss, optimizer, check_numerics=check_numerics)


def our_frames(error):
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if frame.filename.startswith(OURS)]


@pytest.mark.parametrize('check_numerics', [False, True])
def test_a_plain_session_says_it_in_a_sentence_before_tensorflow_raises(capfd, check_numerics):
    _, train_op = bad_train_op(check_numerics)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        capfd.readouterr()
        try:
            session.run(train_op)
            assert not check_numerics
        except tf.errors.InvalidArgumentError:
            assert check_numerics
        said = capfd.readouterr().err
    assert (
        said.count('this step wrote nothing (global step 0); bad: loss my_loss, gradient of') == 1
    )


def watched(loss, train_op):
    with slimguard.watch(tf1.Session()) as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)


def monitored(loss, train_op):
    hooks = [slimguard.NanLossHook(loss)]
    with tf1.train.MonitoredTrainingSession(hooks=hooks, log_step_count_steps=None) as session:
        session.run(train_op)


def trained(loss, train_op):
    slimguard.train(train_op, None, number_of_steps=3)


@pytest.mark.parametrize('loop, most', [(watched, 1), (trained, 1), (monitored, 2)])
def test_an_error_brings_few_frames_of_ours(loop, most, capfd):
    with pytest.raises(slimguard.NanLossError, match='not finite: loss my_loss') as caught:
        loop(*bad_train_op(check_numerics=True))
    assert len(our_frames(caught.value)) <= most
    assert any('loop(*bad' in str(frame.line) for frame in traceback.extract_tb(caught.tb))
    assert 'wrote nothing (' not in capfd.readouterr().err  # the log has it


def test_the_traceback_of_a_script_is_of_the_script_alone(tmp_path):
    (tmp_path / 'script.py').write_text(SCRIPT)
    done = forked_python(
        '-m', 'slimguard', 'run', '--capture=no', 'script.py', cwd=str(tmp_path), finds='tensorflow'
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    at = lines.index('Traceback (most recent call last):')
    files = [line for line in lines[at:] if line.startswith('  File "')]
    assert [file.partition(', ')[2] for file in files] == [
        'line 19, in <module>',
        'line 13, in step',
    ]
    assert any(line.startswith('slimguard.NanLossError: Bad step') for line in lines[at:])
    assert 'not finite: loss my_loss' in '\n'.join(lines[:at])


def test_the_signature_of_train_is_as_it_was():
    import inspect

    parameters = list(inspect.signature(slimguard.train).parameters)
    assert parameters[:2] == ['train_op', 'logdir'] and 'preemption_seconds' in parameters
