"""A weight that was not finite is looked at again: another process may have put it back."""

import math

import pytest
import tensorflow as tf

from slimguard.gate import Told
from slimguard.training import incident_reading
from slimguard.training.second_look import look_again
from tests.helpers import gate_models as models

tf1 = tf.compat.v1


@pytest.fixture(name='found')
def _found():
    """A training whose slot is lost, and what is told of its step."""
    damage = models.Damage()
    guarded = models.Guarded(models.two_weights(damage, models.OPTIMIZERS['Momentum']))
    slot = next(v for v in tf1.global_variables() if v.op.name == 'dense/Momentum')
    slot.load([0.0, math.inf, 0.0], guarded.sess)
    guarded.assert_held({damage.places['sparse gradient']: 1e30}, 'a slot that is lost')
    reading = incident_reading.of_gate(guarded.gate, Told(guarded.bad, 0, 1.0))
    assert reading.incident.state_lost
    return guarded.sess, slot, reading


def test_what_is_put_back_is_not_lost(found):
    session, slot, reading = found
    slot.load([0.0, 0.0, 0.0], session)
    seen = look_again(session, reading)
    assert not seen.incident.state_lost
    assert seen.incident.reason == (
        'not finite already before this step: dense/Momentum; another process was putting that back'
    )
    assert seen.incident.tensors == ('dense/Momentum',)


def test_what_stays_so_is_lost(found):
    session, _, reading = found
    assert look_again(session, reading) is reading
