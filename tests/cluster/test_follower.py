"""A process of a job that comes when the chief has ended."""

import types

import pytest
import tensorflow as tf

from slimguard.cluster import follower
from slimguard.cluster.job_table import CHIEF
from tests.helpers.models import LogLines


@pytest.mark.full
def test_who_comes_late_is_told_once_what_it_waits_for(monkeypatch):
    monkeypatch.setattr(follower, '_NO_CHIEF', 1.0)
    table = types.SimpleNamespace(read=lambda: {CHIEF: {'ends': 7, 'open': False, 'round': 1}})
    entry = types.SimpleNamespace(round=None, worker='/job:worker/task:1', table=table)
    coordinator = tf.compat.v1.train.Coordinator()
    with LogLines() as lines:
        assert not follower.Follower(entry).join(coordinator, lambda: False)
    assert coordinator.should_stop()
    (said,) = [line for line in lines if 'had ended when' in line]
    assert '/job:worker/task:1 came. It waits 1 s for another chief' in said
