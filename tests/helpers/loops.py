"""The same training in every loop that the README's table names."""

import math
import os
import signal
from typing import Any, Callable, Dict, List, NamedTuple

import tensorflow as tf

import slimguard
from slimguard import compat
from tests.helpers.models import Linear
from tests.helpers.monitored import monitored

tf1 = tf.compat.v1
tf_slim = compat.import_slim()


class Trained(NamedTuple):
    """The result of a training.

    Attributes:
      began_at: the global step that it began at.
      drawn: how many batches it drew.
    """

    began_at: int
    drawn: int


class Given(NamedTuple):
    """The arguments of a training.

    Attributes:
      logdir: where it saves and resumes.
      on_nan: the policy.
      bad: as for `Batches`: the draws that are bad, or a function of them.
      steps: the global step to train to.
      max_loss: a larger loss is a bad step.
      progress: whether to show a progress bar.
      capture: whether bad steps are diagnosed, which takes a fifth of a short training's time.
      save_interval_secs: how often a thread of `slimguard.train` saves beside the steps; 0 for
        never.
      spike: the limits of the loss and the gradient norm, or None.
      value: the value in a bad draw.
    """

    logdir: str
    on_nan: Any = 'skip'
    bad: Any = ()
    steps: int = 6
    max_loss: Any = None
    progress: bool = False
    capture: bool = True
    save_interval_secs: int = 600
    spike: Any = None
    value: float = math.nan

    def all_but_the_logdir(self) -> Dict[str, Any]:
        names = ('on_nan', 'max_loss', 'progress', 'capture', 'spike')
        return {name: getattr(self, name) for name in names}


class _Watching(tf1.train.SessionRunHook):
    """Notes the step at which a training began, and stops it at the last one."""

    def __init__(self, given: Given):
        self.began_at = -1
        self._given = given

    def begin(self):
        self._step = tf1.train.get_global_step()

    def after_create_session(self, session, coord):
        self.began_at = int(session.run(self._step))

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs([])

    def after_run(self, run_context, run_values):
        if run_context.session.run(self._step) >= self._given.steps:
            run_context.request_stop()


def in_slimguard_train(given: Given) -> Trained:
    model = Linear(given.bad, given.value)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    watching = _Watching(given)
    slimguard.train(
        train_op,
        given.logdir,
        number_of_steps=given.steps,
        log_every_n_steps=0,
        save_summaries_secs=0,
        save_interval_secs=given.save_interval_secs,
        hooks=[watching],
        **given.all_but_the_logdir(),
    )
    return Trained(watching.began_at, model.batches.drawn)


def in_monitored_session(given: Given) -> Trained:
    model = Linear(given.bad, given.value)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(model.loss, **given.all_but_the_logdir())
    watching = _Watching(given)
    _train_monitored(given, train_op, [hook, watching])
    return Trained(watching.began_at, model.batches.drawn)


def _train_monitored(given: Given, train_op, hooks) -> None:
    with monitored(given.logdir, *hooks) as session:
        while not session.should_stop():
            session.run(train_op)


def in_estimator(given: Given) -> Trained:
    made = []
    watching = _Watching(given)

    def model_fn(features, mode):
        model = Linear(given.bad, given.value)
        made.append(model)
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        hook = slimguard.NanLossHook(model.loss, **given.all_but_the_logdir())
        # An Estimator adds a NanTensorHook of its own, which would raise where we skip.
        loss = tf.where(tf.math.is_finite(model.loss), model.loss, tf.zeros_like(model.loss))
        return tf1.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, training_hooks=[hook]
        )

    def input_fn():
        return tf1.data.Dataset.from_tensors({'unused': [0.0]}).repeat()

    config = tf1.estimator.RunConfig(
        save_checkpoints_steps=None, save_checkpoints_secs=1000, log_step_count_steps=None
    )
    estimator = tf1.estimator.Estimator(model_fn, model_dir=given.logdir, config=config)
    estimator.train(input_fn, hooks=[watching])
    return Trained(watching.began_at, made[0].batches.drawn)


def in_watched_session(given: Given) -> Trained:
    model = Linear(given.bad, given.value)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    saver = slimguard.FiniteSaver()
    plain = tf1.Session()
    with slimguard.watch(plain, logdir=given.logdir, **given.all_but_the_logdir()) as session:
        return _train_plainly(given, model, train_op, session, saver)


def _train_plainly(given: Given, model: Linear, train_op, session, saver) -> Trained:
    """A loop that a user writes; `should_stop` is asked if the session has it."""
    session.run(tf1.global_variables_initializer())
    newest = tf1.train.latest_checkpoint(given.logdir)
    if newest is not None:
        saver.restore(session, newest)
    began_at = step = int(session.run(model.step))
    path = os.path.join(given.logdir, 'model.ckpt')
    saver.save(session, path, global_step=model.step)
    should_stop = getattr(session, 'should_stop', lambda: False)
    while step < given.steps and not should_stop():
        session.run(train_op)
        step = int(session.run(model.step))
    if not should_stop():
        saver.save(session, path, global_step=model.step)
    return Trained(began_at, model.batches.drawn)


def _instrumented(given: Given):
    return slimguard.instrument(
        given.on_nan, given.max_loss, capture=given.capture, spike=given.spike
    )


def in_plain_session_unedited(given: Given) -> Trained:
    with _instrumented(given):
        model = Linear(given.bad, given.value)
        train_op = model.minimize()
        with tf1.Session() as session:
            return _train_plainly(given, model, train_op, session, tf1.train.Saver())


def in_monitored_session_unedited(given: Given) -> Trained:
    with _instrumented(given):
        model = Linear(given.bad, given.value)
        train_op = model.minimize()
        watching = _Watching(given)
        _train_monitored(given, train_op, [watching])
    return Trained(watching.began_at, model.batches.drawn)


def in_tf_slim_training_unedited(given: Given) -> Trained:
    with _instrumented(given):
        model = Linear(given.bad, given.value)
        train_op = tf_slim.training.create_train_op(model.loss, model.optimizer)
        watching = _Watching(given)
        tf_slim.training.train(train_op, given.logdir, hooks=[watching], save_summaries_steps=None)
    return Trained(watching.began_at, model.batches.drawn)


def has_estimators() -> bool:
    """Whether TensorFlow has Estimators; 2.16 dropped them."""
    try:
        return tf1.estimator.Estimator is not None
    except (AttributeError, ImportError):
        return False


# By name, as the README's table has them.
EDITED: Dict[str, Callable[[Given], Trained]] = {
    'slimguard.train': in_slimguard_train,
    'MonitoredTrainingSession': in_monitored_session,
    'watch': in_watched_session,
}
if has_estimators():
    EDITED['Estimator'] = in_estimator
UNEDITED: Dict[str, Callable[[Given], Trained]] = {
    'unedited: a plain session': in_plain_session_unedited,
    'unedited: MonitoredTrainingSession': in_monitored_session_unedited,
    'unedited: tf_slim.training.train': in_tf_slim_training_unedited,
}
LOOPS: Dict[str, Callable[[Given], Trained]] = {**EDITED, **UNEDITED}


def cells(loops: Dict[str, Any]) -> list:
    """The loops as the parameters of a test."""
    import pytest  # not in the programs that train here

    return [pytest.param(loop, id=name) for name, loop in loops.items()]


def main(arguments: List[str]) -> None:
    """Trains in a loop, and gets SIGTERM at a draw. The arguments are NAME LOGDIR DRAW."""
    name, logdir, at = arguments
    tf1.disable_eager_execution()

    def bad(draw: int) -> bool:
        if draw == int(at):
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    LOOPS[name](Given(logdir, bad=bad, steps=9))
