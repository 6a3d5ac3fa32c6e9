"""Incidents, and the error that carries one."""

import pickle

import pytest
import tensorflow as tf

from slimguard.incidents.incident import Incident, NanLossError

tf1 = tf.compat.v1


def incident(**changes):
    values = dict(
        step=4,
        loss=float('nan'),
        reason='not finite: gradient of conv1/weights',
        tensors=('gradient of conv1/weights',),
        strategy='hook',
        time=0.0,
    )
    values.update(changes)
    return Incident(**values)


@pytest.mark.parametrize(
    'handled',
    [tf1.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError, tf.errors.OpError],
)
def test_handlers_that_users_have_catch_the_error(handled):
    with pytest.raises(handled):
        raise NanLossError(incident())


def test_the_error_says_where_what_and_that_nothing_was_written():
    said = str(NanLossError(incident()))
    assert 'global step 4' in said
    assert 'gradient of conv1/weights' in said
    assert 'nothing was written' in said


def test_the_error_says_if_the_update_had_landed():
    assert 'the update had already landed' in str(NanLossError(incident(held=False)))


def test_an_incident_without_step_or_loss_can_be_told():
    assert 'in this run: not finite' in str(incident(step=None, loss=None))


def test_the_error_survives_pickling():
    error = pickle.loads(pickle.dumps(NanLossError(incident(loss=1.0))))
    assert error.incident == incident(loss=1.0)
    assert str(error) == str(NanLossError(incident(loss=1.0)))
