"""slimguard.instrument: slim's functions replaced in place, and put back."""

import contextlib
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat, gate
from slimguard.diagnosis.bundle import paths as bundle_paths
from slimguard.training import open_incident
from tests.helpers.children import forked_python
from tests.helpers.models import (
    Linear,
    LogLines,
    checkpoint_at,
    folder_of_start,
    non_finite,
    records_in,
)

tf1 = tf.compat.v1
slim = compat.import_slim()


@pytest.fixture(autouse=True)
def folder_for_records(tmp_path, monkeypatch):
    """Where a training that saves nothing leaves its record."""
    monkeypatch.chdir(tmp_path)


def namespace():
    """Every attribute of every slim module that is loaded."""
    return {
        (name, attribute): value
        for name, module in list(sys.modules.items())
        if name.startswith(('tf_slim', 'tensorflow.contrib.slim', 'tensorflow.contrib.training'))
        for attribute, value in list(vars(module).items())
    }


def create_train_op(model, **kwargs):
    return slim.learning.create_train_op(model.loss, model.optimizer, **kwargs)


def train(train_op, logdir=None):
    return slim.learning.train(train_op, logdir, number_of_steps=6, log_every_n_steps=0)


def test_uninstrument_leaves_every_attribute_as_it_was():
    before = namespace()
    with slimguard.instrument(on_nan='skip'):
        assert namespace()['tf_slim.learning', 'train'] is not before['tf_slim.learning', 'train']
    after = namespace()
    assert after.keys() == before.keys()
    assert all(after[key] is before[key] for key in before)


def test_twice_is_once():
    first = slimguard.instrument(on_nan='skip')
    try:
        inside = namespace()
        assert slimguard.instrument(on_nan='skip') is first
        now = namespace()
        assert all(now[key] is value for key, value in inside.items())
        assert slimguard.instrument(on_nan=[slimguard.Skip()]) is first
        with pytest.raises(ValueError, match="instrumented already, with on_nan='skip'") as caught:
            slimguard.instrument(on_nan='stop')
        # Who has not kept what `instrument` returned, as in a notebook, is told how to end it.
        assert "slimguard.instrument(on_nan='skip').uninstrument() first" in str(caught.value)
    finally:
        first.uninstrument()
    first.uninstrument()


@pytest.mark.full
def test_the_steps_of_slims_loop_are_counted(tmp_path):
    def step(*args):
        return slim.learning.train_step(*args)

    with slimguard.instrument(on_nan='skip') as active:
        train_op = create_train_op(Linear(bad=(2,)))
        slim.learning.train(train_op, str(tmp_path), number_of_steps=6, train_step_fn=step)
        said = str(active.sessions.seen)
    assert ': 7 steps, 1 incident (skip 1); record and bundles: %s' % tmp_path in said


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


def test_a_record_that_goes_elsewhere_than_said_is_said(tmp_path):
    with LogLines() as lines, slimguard.instrument(on_nan='skip', logdir=tmp_path / 'records'):
        train(create_train_op(Linear(bad=(2,))), str(tmp_path / 'logs'))
    (line,) = [line for line in lines if 'is to have the record' in line]
    assert str(tmp_path / 'records') in line and str(tmp_path / 'logs') in line
    assert len(records_in(tmp_path / 'logs')) == 1


def test_code_that_imported_the_functions_by_name_before():
    script = types.ModuleType('a_script')
    script.train, original = slim.learning.train, slim.learning.train
    sys.modules['a_script'] = script
    try:
        with slimguard.instrument():
            assert script.train is slim.learning.train is not original
        assert script.train is original
    finally:
        del sys.modules['a_script']


@pytest.mark.full
def test_slims_loop_skips_a_bad_step(tmp_path):
    model = Linear(bad=(3,))
    with slimguard.instrument(on_nan='skip'):
        assert np.isfinite(train(create_train_op(model, check_numerics=True)))
    assert model.batches.drawn == 7


def test_incidents_that_a_hook_has_forgotten_are_counted_at_the_end(monkeypatch, tmp_path):
    monkeypatch.setattr(open_incident, '_REMEMBERED', 2)
    with slimguard.instrument(on_nan='skip', capture=False) as guards:
        train(create_train_op(Linear(bad=(1, 2, 3, 5)), check_numerics=True), str(tmp_path))
    assert guards.sessions.seen.actions == {'skip': 4}


@pytest.mark.full
def test_raise_is_the_default(tmp_path):
    with slimguard.instrument():
        with pytest.raises(slimguard.NanLossError, match='global step 3'):
            train(create_train_op(Linear(bad=(3,)), check_numerics=False), str(tmp_path))
    assert checkpoint_at(tmp_path) == (3, [])


def test_slims_train_op_in_a_plain_session_after_the_guards_says_it_on_stderr(capfd):
    model = Linear(bad=(1,))
    with slimguard.instrument(on_nan='skip'):
        train_op = create_train_op(model, check_numerics=True)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        losses = [session.run(train_op) for _ in range(4)]
        assert np.isnan(losses[1]) and np.isfinite(losses[2:]).all()
        assert session.run(model.step) == 3 and not non_finite(session)
    assert capfd.readouterr().err.count('slimguard: this step wrote nothing') == 1


@pytest.mark.full
def test_a_train_op_built_by_hand_is_guarded_on_the_way_in():
    """As slim's model_deploy does it: updates grouped, and the loss behind them."""
    model = Linear(bad=(3,))
    mean = tf1.get_variable('mean', [3], initializer=tf1.zeros_initializer(), trainable=False)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, mean.assign(tf.reduce_mean(model.batches.x, 0)))
    gradients = model.optimizer.compute_gradients(model.loss)
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    updates.append(model.optimizer.apply_gradients(gradients, global_step=model.step))
    with tf.control_dependencies([tf.group(*updates)]):
        train_tensor = tf.identity(model.loss)
    seen = []

    def step(session, *args):
        result = slim.learning.train_step(session, *args)
        seen.extend(non_finite(session))
        return result

    with slimguard.instrument(on_nan='skip'):
        slim.learning.train(train_tensor, None, train_step_fn=step, number_of_steps=6)
    assert not seen and model.batches.drawn == 7


@pytest.mark.full
def test_training_in_a_monitored_session(tmp_path):
    training = pytest.importorskip('tf_slim.training.training')
    model = Linear(bad=(3,))
    with slimguard.instrument(on_nan='skip'):
        train_op = training.create_train_op(model.loss, model.optimizer)
        assert gate.gate_of(train_op) is not None
        stop = tf1.train.StopAtStepHook(last_step=6)
        training.train(train_op, str(tmp_path), hooks=[stop])
    assert model.batches.drawn == 7


@pytest.mark.full
def test_a_monitored_session_with_a_scaffold_publishes_nothing_that_is_not_finite(tmp_path):
    training = pytest.importorskip('tf_slim.training.training')
    model = Linear()
    with slimguard.instrument(on_nan='skip'):
        train_op = training.create_train_op(model.loss, model.optimizer)
        other = tf1.get_variable('other', initializer=1.0)
        spoil = tf1.assign(other, np.nan)

        class Spoiler(tf1.train.SessionRunHook):
            def end(self, session):
                session.run(spoil)

        scaffold = tf1.train.Scaffold(saver=tf1.train.Saver())
        stop = tf1.train.StopAtStepHook(last_step=3)
        training.train(
            train_op, str(tmp_path), scaffold=scaffold, chief_only_hooks=[Spoiler(), stop]
        )
    assert checkpoint_at(tmp_path) == (0, [])


@pytest.mark.full
def test_a_watcher_of_the_codes_own_acts_by_its_own_policy_and_is_counted():
    model = Linear(bad=(1, 3))
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    with slimguard.instrument(on_nan='stop') as guards:
        train_op = create_train_op(model)
        slim.learning.train(train_op, None, number_of_steps=4, hooks=[hook])
    assert [incident.action for incident in hook.incidents] == ['skip', 'skip']
    assert guards.sessions.seen.actions == {'skip': 2}


@pytest.mark.full
@pytest.mark.parametrize('given, bundles', [({'max_bundles': 1}, 1), ({'capture': False}, 0)])
def test_slims_training_captures_once_and_keeps_so_many_bundles(given, bundles, tmp_path):
    model = Linear(bad=(1, 3))
    with slimguard.instrument(on_nan='skip', **given):
        train(create_train_op(model), str(tmp_path))
    assert len(bundle_paths(str(tmp_path))) == bundles
    names = [op.name for op in model.loss.graph.get_operations() if op.type == 'Stage']
    assert sum(name.startswith('slimguard/capture') for name in names) == bundles


@pytest.mark.parametrize(
    'arguments, words',
    [
        ({'on_nan': 'ignore'}, "on_nan='ignore'"),
        ({'max_loss': -1}, 'positive finite number'),
        ({'max_bundles': 0}, 'at least 1, not 0'),
    ],
)
def test_bad_arguments_change_nothing(arguments, words):
    before = namespace()
    with pytest.raises(ValueError, match=words):
        slimguard.instrument(**arguments)
    after = namespace()
    assert all(after[key] is value for key, value in before.items())


@pytest.mark.skipif(not hasattr(tf, 'contrib'), reason='tf.contrib ended with TensorFlow 1.15')
def test_tf_contrib_imported_afterwards():
    script = (
        'import tensorflow as tf, slimguard\n'
        'running = slimguard.instrument(on_nan="skip")\n'
        'slim = tf.contrib.slim\n'
        'assert slim.learning.train.__wrapped__\n'
        'assert tf.contrib.training.create_train_op.__wrapped__\n'
        'running.uninstrument()\n'
        'for function in (slim.learning.train, slim.learning.create_train_op,\n'
        '                 tf.contrib.training.create_train_op, tf.contrib.training.train):\n'
        '    assert not hasattr(function, "__wrapped__"), function\n'
    )
    done = forked_python('-c', script, finds='tensorflow')
    assert done.returncode == 0, done.stderr
