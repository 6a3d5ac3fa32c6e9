"""The logger of slimguard: messages go to TensorFlow's handlers, unless the user says otherwise."""

import contextlib
import io
import logging

import pytest
import tensorflow as tf

from slimguard.command import parser
from slimguard.system.log import log
from slimguard.training.stop_signals import SAVED_BY_SIGNAL
from slimguard.training.training import SAVED
from tests.helpers.models import LogLines


@pytest.fixture
def ours():
    """slimguard's logger, whose state is restored after the test."""
    logger = logging.getLogger('slimguard')
    yield logger
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def test_messages_go_to_tensorflows_handlers_at_its_level(ours):
    with LogLines() as lines:  # on TensorFlow's logger, at INFO
        log().info('told')
        tf.compat.v1.logging.set_verbosity('ERROR')
        log().warning('not told')
    assert lines == ['told']


def test_a_line_says_slimguard_once_as_python_tensorflow_and_absl_print_it():
    absl = pytest.importorskip('absl.logging')
    printed = []
    # The first is the format of `logging.basicConfig` and of TensorFlow's own handler.
    for formatter in logging.Formatter(logging.BASIC_FORMAT), absl.PythonFormatter():
        handler = logging.StreamHandler(io.StringIO())
        handler.setFormatter(formatter)
        tf.get_logger().addHandler(handler)
        try:
            log().error('told')
        finally:
            tf.get_logger().removeHandler(handler)
        printed.append(handler.stream.getvalue())
    assert printed[0] == 'ERROR:slimguard:told\n'
    assert printed[1].endswith('] told\n') and printed[1].count('slimguard') == 1


def test_users_silence_and_redirect_them_and_leave_tensorflows_alone(ours):
    with LogLines() as lines:
        ours.setLevel(logging.ERROR)
        log().warning('not told')
        tf.compat.v1.logging.warning('of TensorFlow')
        ours.propagate = False
        with LogLines('slimguard') as own:
            log().error('elsewhere')
    assert (lines, own) == (['of TensorFlow'], ['elsewhere'])


def test_quiet_logs_errors_and_what_is_saved_until_the_script_has_ended(ours):
    from slimguard.unedited.run import quieted

    made = parser.make('1')
    assert made.all.parse_args(['run', '--quiet']).quiet
    with LogLines() as lines, contextlib.ExitStack() as lent:
        quieted(lent)
        log().warning('skipped')
        log().warning(SAVED, 'logs/model.ckpt-4')
        log().warning(SAVED_BY_SIGNAL, 'Ctrl-C', 'logs/model.ckpt-5', '')
        log().error('raised')
        lent.close()
        log().warning('of the next script')
    saved = 'the last finite state is saved: logs/model.ckpt-4'
    assert lines == [saved, 'Ctrl-C: saved logs/model.ckpt-5', 'raised', 'of the next script']
