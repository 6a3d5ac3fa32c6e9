"""The logger of slimguard: messages go to TensorFlow's handlers, unless the user says otherwise."""

import contextlib
import logging

import pytest
import tensorflow as tf

from slimguard.command import parser
from slimguard.system.log import log
from tests.helpers.models import LogLines


@pytest.fixture
def ours():
    """The logger, as it is found and left."""
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


def test_users_silence_and_redirect_them_and_leave_tensorflows_alone(ours):
    with LogLines() as lines:
        ours.setLevel(logging.ERROR)
        log().warning('not told')
        tf.compat.v1.logging.warning('of TensorFlow')
        ours.propagate = False
        with LogLines('slimguard') as own:
            log().error('elsewhere')
    assert (lines, own) == (['of TensorFlow'], ['elsewhere'])


def test_quiet_logs_errors_only_until_the_script_has_ended(ours):
    from slimguard.unedited.run_options import quieted

    made = parser.make('1')
    assert made.all.parse_args(['run', '--quiet']).quiet
    with LogLines() as lines, contextlib.ExitStack() as lent:
        quieted(lent)
        log().warning('skipped')
        log().error('raised')
    assert lines == ['raised'] and ours.level == logging.NOTSET
