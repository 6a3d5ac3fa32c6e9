"""In a notebook: progress, interrupts, errors, and cells that are run again. A real kernel."""

import os
import re

import pytest

import slimguard
from tests.helpers.notebooks import Kernel

pytestmark = pytest.mark.full  # a kernel takes its time to start

SETUP = """
import os, signal
import numpy as np
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.logging.set_verbosity(tf1.logging.WARN)
import slimguard
"""
RESET = 'tf1.reset_default_graph()\n'
BUILD = """
x = tf1.get_variable('x', initializer=[1.0, 2.0])
step = tf1.train.get_or_create_global_step()
loss = tf.reduce_sum(x * x) + tf1.log(tf.cast(tf.minimum(step, 4) - BAD, tf.float32) ** 2)
train_op = slimguard.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.01))
"""
TRAIN = 'slimguard.train(train_op, %r, number_of_steps=%d, save_summaries_secs=0)'
ENDLESS = """
class Tell(slimguard.hooks.SessionRunHook):
    def after_run(self, context, values):
        told = context.session.run(step)
        if told == 20:
            print('step 20 is done', flush=True)

slimguard.train(train_op, %r, number_of_steps=None, hooks=[Tell()], save_summaries_secs=0)
"""


@pytest.fixture(scope='module')
def kernel(tmp_path_factory):
    kernel = Kernel(tmp_path_factory.mktemp('kernel'))
    shown = kernel.run(SETUP)
    assert not shown.error, shown.traceback
    yield kernel
    kernel.close()


def build(kernel, bad=-1):
    shown = kernel.run(RESET + BUILD.replace('BAD', str(bad)))
    assert not shown.error, shown.traceback


def test_the_bar_shows_and_a_missing_ipywidgets_is_no_warning(kernel, tmp_path):
    build(kernel)
    train = TRAIN % (str(tmp_path), 50)
    shown = kernel.run(train[:-1] + ', progress=True)')
    assert not shown.error, shown.traceback
    assert re.search(r'100%.* 50/50 .*0 incidents', shown.text)
    assert 'IProgress' not in shown.text and 'TqdmWarning' not in shown.text


def test_an_error_shows_the_diagnosis_first_and_none_of_our_files(kernel, tmp_path):
    build(kernel, bad=4)
    shown = kernel.run(TRAIN % (str(tmp_path), 50))
    assert shown.error == 'NanLossError'
    lines = shown.traceback.splitlines()
    assert lines[0].startswith('NanLossError: Bad step at global step 4')
    assert 'log of 0' in lines[0]
    assert any('slimguard report' in line for line in lines)
    at = lines.index('raised in')
    assert len(lines) == at + 2 and 'cell' in lines[at + 1] and 'slimguard.train(' in lines[at + 1]
    assert os.path.dirname(slimguard.__file__) not in shown.traceback
    assert len(lines) < 16


def test_lines_of_functions_in_other_cells_are_shown(kernel):
    build(kernel, bad=0)
    kernel.run('def go():\n    return slimguard.train(train_op, None, number_of_steps=3)')
    lines = kernel.run('# The call.\ngo()').traceback.splitlines()
    assert [line.partition(', line ')[2] for line in lines[-2:]] == [
        '2, in <module>: go()',
        '2, in go: return slimguard.train(train_op, None, number_of_steps=3)',
    ]


def test_a_watched_session_shows_it_so_too(kernel):
    build(kernel, bad=0)
    shown = kernel.run(
        'with slimguard.watch(tf1.Session()) as session:\n'
        '    session.run(tf1.global_variables_initializer())\n'
        '    session.run(train_op)'
    )
    lines = shown.traceback.splitlines()
    assert lines[0].startswith('NanLossError: Bad step at global step 0')
    assert lines[-1].endswith('session.run(train_op)')
    assert os.path.dirname(slimguard.__file__) not in shown.traceback


def test_an_interrupted_cell_is_saved_and_the_kernel_goes_on(kernel, tmp_path):
    build(kernel)
    shown = kernel.run(ENDLESS % str(tmp_path), interrupt_at='step 20 is done')
    assert shown.error == 'KeyboardInterrupt', shown.traceback
    saved = slimguard.latest_finite_checkpoint(tmp_path)
    assert int(saved.rpartition('-')[2]) >= 20
    # Ctrl-C is Python's again, and the training goes on from what was saved.
    asked = 'assert signal.getsignal(signal.SIGINT) is signal.default_int_handler'
    assert kernel.run(asked).error == ''
    build(kernel)
    steps = int(saved.rpartition('-')[2]) + 5
    assert not kernel.run(TRAIN % (str(tmp_path), steps)).error
    assert slimguard.latest_finite_checkpoint(tmp_path).endswith('-%d' % steps)


ADVICE = 'tf.compat.v1.reset_default_graph()'


class TestACellThatIsRunAgain:
    @pytest.mark.parametrize(
        'again',
        [TRAIN % ('', 3), 'slimguard.create_train_op(loss, tf1.train.AdamOptimizer())'],
    )
    def test_of_ours_is_told_in_the_error(self, kernel, again):
        build(kernel)
        first = kernel.run(TRAIN % ('', 3))
        assert not first.error, first.traceback
        shown = kernel.run(again)
        assert shown.error == 'RuntimeError'
        assert ADVICE in shown.traceback.rpartition('RuntimeError: ')[2].splitlines()[0]

    def test_may_guard_what_is_guarded_and_watch_another_session(self, kernel):
        build(kernel)
        for _ in range(2):
            shown = kernel.run(
                'train_op = slimguard.guard(train_op)\n'
                'with slimguard.watch(tf1.Session(), on_nan="skip") as session:\n'
                '    session.run(tf1.global_variables_initializer())\n'
                '    session.run(train_op)'
            )
            assert not shown.error, shown.traceback
