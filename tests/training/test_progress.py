"""The progress bar of slimguard.train."""

import os
import re
import struct
import subprocess
import sys

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.children import ROOT, environment
from tests.helpers.models import Linear
from tests.helpers.template import Forked

fcntl = pytest.importorskip('fcntl')  # there is none on Windows
pty = pytest.importorskip('pty')
termios = pytest.importorskip('termios')
tf1 = tf.compat.v1

SCRIPT = """
import sys, time, warnings
warnings.simplefilter('ignore')
import tensorflow as tf
import slimguard
from tests.helpers.models import Linear

tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.logging.set_verbosity(tf1.logging.INFO)
{before}
model = Linear(bad=(5,))
train_op = slimguard.create_train_op(model.loss, model.optimizer)

class Slow(tf1.train.SessionRunHook):
    def after_run(self, *_):
        time.sleep(0.03)

loss = slimguard.train(
    train_op, None, number_of_steps=12, log_every_n_steps=4, on_nan='skip', hooks=[Slow()],
    progress=True{more}
)
tf1.logging.warning('after')
print('loss %.4g' % loss)
"""
OWN_STEP = ', train_step_fn=lambda *args: slimguard.learning.train_step(*args)'
ABSL = 'import absl.logging\nabsl.logging.use_absl_handler()'


def run(before='', more=''):
    """Trains with a terminal as stderr. Returns what was written to it, and the stdout."""
    script = SCRIPT.format(before=before, more=more)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 100, 0, 0))
    process = Forked(
        ['-c', script],
        environment(),
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=str(ROOT),  # to import `tests`
        text=True,
    )
    os.close(theirs)
    written = b''
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # a terminal's end of file, when no writer is left
            break
        written += data
    os.close(ours)
    output = process.stdout.read()
    assert process.wait() == 0, written.decode()
    return written.decode(), output


def screen(written):
    """The lines that a terminal shows at the end; a carriage return overwrites its line."""
    lines = []
    for line in written.replace('\r\n', '\n').split('\n'):
        shown = ''
        for part in line.split('\r'):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


@pytest.mark.parametrize(
    'before, more', [('', ''), (ABSL, OWN_STEP)], ids=['fast', 'absl_and_a_step_of_ones_own']
)
def test_the_bar_and_the_log_lines(before, more):
    pytest.importorskip('tqdm')
    written, output = run(before=before, more=more)
    lines = screen(written)
    steps = [line for line in lines if 'global step' in line and 'sec/step' in line]
    assert len(steps) == (6 if before else 3)  # absl prints each line a second time
    assert all(
        re.search(r'global step \d+: loss = \d+\.\d{4} \(\d+\.\d{3} sec/step\)$', s) for s in steps
    )
    assert sum('incident 1 at global step 5' in line for line in lines) == len(steps) // 3
    (bar,) = [line for line in lines if 'step/s' in line]
    assert '12/12' in bar and re.search(r'1 incident\b', bar) and output.strip() in bar
    # The bar was drawn during the training, too.
    assert len(set(re.findall(r'(\d+)/12', written))) > 2
    assert lines[lines.index(bar) + 1 :][0].endswith('after')


def test_where_stderr_is_no_terminal_there_is_none(capfd):
    pytest.importorskip('tqdm')
    model = Linear()
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    slimguard.train(train_op, None, number_of_steps=3, progress=True)
    assert model.batches.drawn == 3 and '\r' not in capfd.readouterr().err


@pytest.mark.full
def test_without_tqdm_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tqdm', None)
    model = Linear()
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    with pytest.raises(ImportError, match='pip install tqdm'):
        slimguard.train(train_op, None, number_of_steps=1, progress=True)
    assert model.batches.drawn == 0
    slimguard.train(train_op, None, number_of_steps=1)
