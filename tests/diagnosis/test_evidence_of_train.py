"""slimguard.train keeps what a bad step drew, says what made it bad, and how to run it again."""

import pytest
import tensorflow as tf

import slimguard
from slimguard.diagnosis import bundle, replay
from tests.helpers.models import Linear, records_in, train_quietly

tf1 = tf.compat.v1


def fail(logdir, bad=(2,), **kwargs):
    model = Linear(bad=bad)
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    with pytest.raises(slimguard.NanLossError) as caught:
        train_quietly(train_op, logdir, **kwargs)
    return caught.value


def by_hand(session, train_op, global_step, kwargs):
    return session.run(train_op), False


@pytest.mark.parametrize('train_step_fn', [None, by_hand])
def test_the_error_says_what_it_was_and_how_to_run_it_again(tmp_path, train_step_fn):
    error = fail(tmp_path, **({'train_step_fn': train_step_fn} if train_step_fn else {}))
    lines = str(error).splitlines()
    path = str(tmp_path / 'slimguard' / 'step-2')
    why = 'in the input: bad data: 1 NaN among 12 values, in row 1'
    assert lines[0] == 'Bad step at global step 2 (loss nan): ' + why
    assert lines[-1] == 'to see what happened: python -m slimguard report %s' % tmp_path
    assert error.incident.bundle == path
    assert replay.main(path) == 0
    (record,) = records_in(str(tmp_path))
    assert record['bundle'] == path
    assert bundle.read(path).incident['step'] == 2


@pytest.mark.full
@pytest.mark.parametrize('on_nan', ['stop', 'skip', 'rollback'])
def test_a_bundle_knows_what_is_done(tmp_path, on_nan):
    model = Linear(bad=(2,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    train_quietly(train_op, tmp_path, on_nan=on_nan)
    (path,) = bundle.paths(str(tmp_path))
    assert bundle.read(path).incident['action'] == on_nan


@pytest.mark.full
@pytest.mark.parametrize(
    'error, action', [(ValueError, 'error'), (tf.errors.AbortedError, 'on_nan_loss')]
)
def test_a_bundle_knows_that_the_callable_has_failed(tmp_path, error, action):
    def explode(incident):
        raise error(*[None] * 2, 'broken') if action == 'on_nan_loss' else error('broken')

    model = Linear(bad=(2,))
    hook = slimguard.NanLossHook(model.loss, on_nan=explode)
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    if action == 'error':
        with pytest.raises(error):
            train_quietly(train_op, tmp_path, hooks=[hook])
    else:  # the loop goes on in a new session
        train_quietly(train_op, tmp_path, hooks=[hook])
    (path,) = bundle.paths(str(tmp_path))
    assert bundle.read(path).incident['action'] == action == hook.incidents[0].action


@pytest.mark.full
def test_a_rollback_comes_after_the_evidence(tmp_path):
    model = Linear(bad=(2, 3))
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    train_quietly(train_op, tmp_path, on_nan='rollback')
    paths = bundle.paths(str(tmp_path))
    assert [bundle.read(path).incident['step'] for path in paths] == [2, 0]
    assert [replay.main(path) for path in paths] == [0, 0]
