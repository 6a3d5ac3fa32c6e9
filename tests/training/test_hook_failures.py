"""Callables of the user's that fail at an incident: it is recorded, logged and saved first."""

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import Counted, Linear, LogLines, checkpoint_at, records_in, train_quietly

tf1 = tf.compat.v1


class Boom(Exception):
    pass


def explode(*_):
    raise Boom('it broke\nand more')


class Overriding(slimguard.NanLossHook):
    def on_nan_loss(self, run_context, incident):
        explode()


CASES = {
    'on_nan raises': (explode, slimguard.NanLossHook, Boom, 'on_nan raised Boom: it broke'),
    'on_nan in a list raises': (
        [explode, 'skip'],
        slimguard.NanLossHook,
        Boom,
        'on_nan raised Boom: it broke',
    ),
    'on_nan returns a number': (
        lambda incident: 42,
        slimguard.NanLossHook,
        TypeError,
        'on_nan raised TypeError: the on_nan callable',
    ),
    'on_nan returns an unknown name': (
        lambda incident: 'skp',
        slimguard.NanLossHook,
        ValueError,
        "returned 'skp': unknown policy on_nan='skp' (did you mean 'skip'?); expected one of",
    ),
    'on_nan_loss raises': (
        'skip',
        Overriding,
        Boom,
        'Overriding.on_nan_loss raised Boom: it broke',
    ),
    'both raise': (explode, Overriding, Boom, 'on_nan raised Boom: it broke'),
}
each_case = pytest.mark.parametrize('case', sorted(CASES))


def one_record(logdir):
    (record,) = records_in(logdir)
    return record


def incidents_in(lines):
    return [line for line in lines if line.startswith('slimguard: incident 1 at global step 3')]


@each_case
@pytest.mark.parametrize('check_numerics', [True, False])
def test_in_train_it_is_on_record_logged_and_saved_before_the_error_leaves(
    case, check_numerics, tmp_path
):
    on_nan, kind, error, words = CASES[case]
    model = Linear(bad=(3,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=check_numerics)
    with LogLines() as lines, pytest.raises(error):
        train_quietly(train_op, tmp_path, hooks=[kind(model.loss, on_nan=on_nan)])
    record = one_record(tmp_path)
    assert (record['step'], record['action']) == (3, 'error')
    assert words in record['reason'] and 'and more' not in record['reason']
    assert record['bundle'] is not None
    (line,) = incidents_in(lines)
    assert words in line
    assert checkpoint_at(tmp_path) == (3, [])


@each_case
def test_in_a_monitored_session_it_is_on_record_and_logged(case, tmp_path):
    on_nan, kind, error, words = CASES[case]
    model = Linear(bad=(3,))
    train_op = slimguard.guard(model.minimize(), loss=model.loss)
    hook = kind(model.loss, on_nan=on_nan, logdir=tmp_path)
    with LogLines() as lines, pytest.raises(error):
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            for _ in range(6):
                session.run(train_op)
    assert one_record(tmp_path)['action'] == 'error'
    (line,) = incidents_in(lines)
    assert words in line


def test_the_incident_that_ends_the_training_has_a_bundle_though_others_took_the_room(tmp_path):
    model = Linear(bad=(2, 3))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(
        model.loss, on_nan=lambda incident: 'skip' if len(hook.incidents) == 1 else explode()
    )
    with pytest.raises(Boom):
        train_quietly(train_op, tmp_path, hooks=[hook], max_bundles=1)
    assert [incident.action for incident in hook.incidents] == ['skip', 'error']
    assert hook.incidents[0].bundle is None and hook.incidents[1].bundle is not None


def test_the_second_of_two_hooks_may_be_the_one_that_fails(tmp_path):
    model = Linear(bad=(3,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hooks = [slimguard.NanLossHook(model.loss, on_nan=on_nan) for on_nan in ('skip', explode)]
    with pytest.raises(Boom):
        train_quietly(train_op, tmp_path, hooks=hooks)
    assert checkpoint_at(tmp_path) == (3, [])


def test_where_on_rollback_raises_the_rollback_is_on_record(tmp_path):
    model = Linear(bad=(3,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    with LogLines() as lines, pytest.raises(Boom):
        train_quietly(train_op, tmp_path, on_nan=slimguard.Rollback(on_rollback=explode))
    record = one_record(tmp_path)
    assert record['action'] == 'rollback' and record['restored'] is not None
    assert 'on_rollback raised Boom: it broke' in record['reason']
    assert len(incidents_in(lines)) == 1
    assert checkpoint_at(tmp_path) == (0, [])  # what was restored


def test_a_policy_that_cannot_act_is_on_record_as_what_it_is(tmp_path):
    model = Linear(bad=(3,))
    hook = slimguard.NanLossHook(model.loss, on_nan=lambda incident: 'skip', logdir=tmp_path)
    train_op = model.minimize()
    with pytest.raises(ValueError, match='no gate looks at loss'):
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            for _ in range(6):
                session.run(train_op)
    assert one_record(tmp_path)['action'] == 'error'


class Looking(tf1.train.SessionRunHook):
    """Looks at each loss, and fails at a NaN."""

    def __init__(self, loss):
        self._loss = loss

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        if run_values.results != run_values.results:
            explode()


@pytest.mark.parametrize('wrapped', [False, True])
@pytest.mark.parametrize('last', ['the watcher', 'a hook of the user'])
def test_a_hook_of_the_users_that_fails_at_a_bad_step_hides_no_incident(wrapped, last, tmp_path):
    model = Linear(bad=(3,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hooks = [Looking(model.loss)]
    if last == 'a hook of the user':
        hooks.append(Looking(model.loss))
    kwargs = {'session_wrapper': lambda session: Counted(session, [])} if wrapped else {}
    with LogLines() as lines, pytest.raises(Boom):
        train_quietly(train_op, tmp_path, hooks=hooks, on_nan='skip', **kwargs)
    record = one_record(tmp_path)
    assert (record['step'], record['action']) == (3, 'error')
    assert 'Looking.after_run raised Boom: it broke' in record['reason']
    assert record['bundle'] is not None
    (line,) = incidents_in(lines)
    assert '; nothing was written; Looking.after_run failed. Why the step was bad: in the' in line
    assert checkpoint_at(tmp_path) == (3, [])


@pytest.mark.parametrize('wrapped', [False, True])
def test_what_one_watcher_raises_is_no_incident_of_the_next(wrapped, tmp_path):
    model = Linear(bad=(3,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hooks = [slimguard.NanLossHook(model.loss, on_nan=on_nan) for on_nan in ('raise', 'skip')]
    kwargs = {'session_wrapper': lambda session: Counted(session, [])} if wrapped else {}
    with pytest.raises(slimguard.NanLossError):
        train_quietly(train_op, tmp_path, hooks=hooks, **kwargs)
    assert one_record(tmp_path)['action'] == 'raise'
    assert hooks[1].incidents == []


def test_tensorflows_own_nan_hook_before_ours_hides_no_incident(tmp_path):
    model = Linear(bad=(3,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    with pytest.raises(tf1.train.NanLossDuringTrainingError):
        train_quietly(
            train_op, tmp_path, hooks=[tf1.train.NanTensorHook(model.loss)], on_nan='skip'
        )
    assert one_record(tmp_path)['action'] == 'error'


@pytest.mark.parametrize('check_numerics', [True, False])
@pytest.mark.parametrize(
    'error', [StopIteration(), tf.errors.OutOfRangeError(None, None, 'none left')]
)
def test_a_policy_that_raises_what_ends_the_input_does_not_end_it(error, check_numerics, tmp_path):
    def end(incident):
        raise error

    model = Linear(bad=(3,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=check_numerics)
    with pytest.raises(RuntimeError, match='^on_nan raised (StopIteration|OutOfRangeError)'):
        train_quietly(train_op, tmp_path, on_nan=end)
    assert one_record(tmp_path)['action'] == 'error'
    assert checkpoint_at(tmp_path) == (3, [])


@pytest.mark.parametrize('error', [Boom, KeyboardInterrupt])
def test_where_a_hooks_end_fails_the_training_is_saved(error, tmp_path):
    class Ending(tf1.train.SessionRunHook):
        def end(self, session):
            raise error

    model = Linear()
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    with pytest.raises(error):
        train_quietly(train_op, tmp_path, hooks=[Ending()])
    assert checkpoint_at(tmp_path) == (6, [])


def test_an_error_of_a_later_step_saves_nothing_on_account_of_an_incident(tmp_path):
    model = Linear(bad=(3,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)

    class Later(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            if model.batches.drawn == 5:
                explode()

    with pytest.raises(Boom):
        train_quietly(train_op, tmp_path, on_nan='skip', hooks=[Later()])
    assert checkpoint_at(tmp_path) == (None, [])


class Failing(tf1.train.SessionRunHook):
    """A hook of the user's that raises in one of the steps."""

    def __init__(self, step):
        self._left = step

    def after_run(self, run_context, run_values):
        self._left -= 1
        if not self._left:
            raise Boom('it broke')


@pytest.mark.parametrize('is_tensorflows', [False, True])
def test_a_hook_before_ours_that_fails_in_a_monitored_session_hides_no_incident(
    is_tensorflows, tmp_path
):
    model = Linear(bad=(3,))
    train_op = slimguard.guard(model.minimize(), loss=model.loss)
    first, error = Failing(5), Boom  # the variables are initialized in a run of their own
    if is_tensorflows:
        first, error = tf1.train.NanTensorHook(model.loss), tf1.train.NanLossDuringTrainingError
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    with pytest.raises(error):
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), hooks=[first, hook], save_summaries_steps=None
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    assert [incident.action for incident in hook.incidents] == ['skip']
    assert [record['step'] for record in records_in(tmp_path)] == [3]
