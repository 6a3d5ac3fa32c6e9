"""slimguard.instrument: the functions it replaces, its errors, and slim's functions under it."""

import contextlib
import time

import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.diagnosis.bundle import paths as bundle_paths
from tests.helpers.models import Linear, checkpoint_at, folder_of_start, records_in

tf1 = tf.compat.v1
slim = compat.import_slim()


@pytest.fixture(autouse=True)
def folder_for_records(tmp_path, monkeypatch):
    """The folder in which a training that saves nothing leaves its record."""
    monkeypatch.chdir(tmp_path)


def attributes():
    """The attributes of each class of TensorFlow that `instrument` changes."""
    owners = [tf1.Session.__mro__[1], tf.Graph, tf1.train.Saver, tf1.train.NanTensorHook]
    owners += [tf1.train.Optimizer, tf1.train.SyncReplicasOptimizer, tf1.summary.FileWriter]
    return [dict(vars(owner)) for owner in owners]


def create_train_op(model, **kwargs):
    return slim.learning.create_train_op(model.loss, model.optimizer, **kwargs)


def train(train_op, logdir=None):
    return slim.learning.train(train_op, logdir, number_of_steps=6, log_every_n_steps=0)


def test_uninstrument_leaves_every_attribute_as_it_was():
    before = attributes()
    with slimguard.instrument(on_nan='skip'):
        assert all(now != then for now, then in zip(attributes(), before))
    assert attributes() == before


def test_twice_is_once():
    first = slimguard.instrument(on_nan='skip')
    try:
        inside = attributes()
        assert slimguard.instrument(on_nan='skip') is first
        assert attributes() == inside
        assert slimguard.instrument(on_nan=[slimguard.Skip()]) is first
        with pytest.raises(ValueError, match='in force already') as caught:
            slimguard.instrument(on_nan='stop')
        # In a notebook the result of `instrument` is often not kept: the error says how to end it.
        assert "slimguard.instrument(on_nan='skip').uninstrument() first" in str(caught.value)
    finally:
        first.uninstrument()
    first.uninstrument()


@pytest.mark.full
@pytest.mark.parametrize('check_numerics', [True, False])
def test_slims_loop_skips_a_bad_step_and_counts_it(check_numerics, tmp_path):
    with slimguard.instrument(on_nan='skip') as active:
        model = Linear(bad=(2,))
        train(create_train_op(model, check_numerics=check_numerics), str(tmp_path))
    result, command = active.sessions.seen.lines()
    assert result.endswith(': 7 steps, 1 incident in this run (skip 1)')
    assert command.endswith('python -m slimguard report %s' % tmp_path)
    assert model.batches.drawn == 7 and checkpoint_at(tmp_path) == (6, [])


@pytest.mark.full
@pytest.mark.parametrize('on_nan, is_told', [('skip', True), ('raise', False)])
def test_a_training_of_slims_that_saves_nothing_has_a_record_all_the_same(
    on_nan, is_told, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = {'logdir': 'records'} if is_told else {}
    with slimguard.instrument(on_nan=on_nan, **given):
        with pytest.raises(slimguard.NanLossError) if on_nan == 'raise' else contextlib.ExitStack():
            train(create_train_op(Linear(bad=(2,))))
    folder = tmp_path / 'records' if is_told else folder_of_start(tmp_path)
    assert [each['action'] for each in records_in(folder)] == [on_nan]
    assert len(bundle_paths(str(folder))) == 1


@pytest.mark.full
def test_raise_is_the_default_and_slims_loop_saves_before_it(tmp_path):
    def step(*args):
        while tf1.train.latest_checkpoint(str(tmp_path)) is None:  # the Supervisor saves at once
            time.sleep(0.01)
        return slim.learning.train_step(*args)

    with slimguard.instrument():
        train_op = create_train_op(Linear(bad=(3,)), check_numerics=False)
        with pytest.raises(slimguard.NanLossError, match='global step 3'):
            slim.learning.train(train_op, str(tmp_path), train_step_fn=step, number_of_steps=6)
    assert checkpoint_at(tmp_path) == (3, [])


@pytest.mark.parametrize(
    'arguments, words',
    [
        ({'on_nan': 'ignore'}, "on_nan: unknown policy 'ignore'"),
        ({'max_loss': -1}, 'positive finite number'),
        ({'max_bundles': 0}, 'at least 1, not 0'),
    ],
)
def test_bad_arguments_change_nothing(arguments, words):
    before = attributes()
    with pytest.raises(ValueError, match=words):
        slimguard.instrument(**arguments)
    assert attributes() == before
