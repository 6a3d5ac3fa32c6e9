"""Code for the type checker, as in the docs; it is never run. Wrong calls must be type errors.

These have ``# pyright: ignore``; if there is no error to ignore, pyrightconfig.json makes one.
"""

import pathlib
from typing import Any, List, Optional

import tensorflow as tf

import slimguard
from slimguard import learning
from slimguard.hooks import NanLossHook

tf1 = tf.compat.v1


def train(loss: tf.Tensor, optimizer: Any, logdir: str) -> Optional[float]:
    train_op = slimguard.create_train_op(loss, optimizer)
    learning.train(train_op, pathlib.Path(logdir), max_loss=10.0, on_nan='stop')
    return slimguard.train(train_op, logdir, number_of_steps=1000, on_nan='skip')


def use_a_hook(loss: tf.Tensor, optimizer: Any) -> None:
    train_op = slimguard.create_train_op(loss, optimizer, check_numerics=False)
    hooks = [slimguard.NanLossHook(loss, on_nan='skip'), NanLossHook(loss, ends_job=False)]
    with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
        session.run(train_op)


def guard_what_was_built_by_hand(loss: tf.Tensor, optimizer: Any) -> Any:
    return slimguard.guard(optimizer.minimize(loss), loss=loss, max_loss=10.0)


def watch_a_plain_session(train_op: Any) -> None:
    with slimguard.watch(tf1.Session(), on_nan='skip') as session:
        session.run(tf1.global_variables_initializer())
        while not session.should_stop():
            session.run(train_op, feed_dict={})


def instrument() -> None:
    with slimguard.instrument(on_nan='skip', max_loss=10.0, capture=False, max_bundles=3):
        pass
    slimguard.instrument(on_nan=slimguard.Raise()).uninstrument()


def policies(loss: tf.Tensor) -> None:
    def halve(session: Any, incident: slimguard.Incident) -> None:
        session.run(incident.step)

    def decide(incident: slimguard.Incident) -> slimguard.Skip:
        return slimguard.Skip(max_consecutive=1 + len(incident.tensors))

    ladder = [slimguard.Skip(5), slimguard.Rollback(max_times=3, on_rollback=halve), 'raise']
    slimguard.NanLossHook(loss, on_nan=ladder)
    slimguard.NanLossHook(loss, on_nan=decide)
    slimguard.NanLossHook(loss, on_nan=slimguard.Stop())


def catch(train_op: Any, logdir: str) -> None:
    try:
        slimguard.train(train_op, logdir)
    except slimguard.NanLossError as error:
        print(error.incident.step, error.incident.tensors)


class Halve(slimguard.NanLossHook):
    def on_nan_loss(self, run_context: Any, incident: slimguard.Incident) -> None:
        run_context.session.run(incident.step)


def checkpoints(logdir: str) -> Optional[str]:
    slimguard.FiniteSaver(max_to_keep=20)
    slimguard.FiniteSaver(tf1.train.Saver())
    return slimguard.latest_finite_checkpoint(logdir)


def record(logdir: str) -> List[Optional[int]]:
    incidents: List[slimguard.Incident] = slimguard.read_incidents(logdir)
    incidents[0].step = 3  # pyright: ignore[reportAttributeAccessIssue]
    return [incident.step for incident in slimguard.read_incidents(pathlib.Path(logdir))]


def report() -> str:
    return str(slimguard.compat.report())


def mistakes(loss: tf.Tensor, train_op: Any) -> None:
    print(slimguard.no_such_name)  # pyright: ignore[reportAttributeAccessIssue]
    slimguard.train(train_op)  # pyright: ignore[reportCallIssue]
    slimguard.train(train_op, None, on_nan=3)  # pyright: ignore[reportArgumentType]
    slimguard.train(train_op, None, onnan='skip')  # pyright: ignore[reportCallIssue]
    slimguard.NanLossHook(loss, max_loss='10')  # pyright: ignore[reportArgumentType]
    slimguard.Skip('5')  # pyright: ignore[reportArgumentType]
    slimguard.Rollback(times=3)  # pyright: ignore[reportCallIssue]
    slimguard.instrument(max_loss='10')  # pyright: ignore[reportArgumentType]
    slimguard.watch(tf1.Session(), logdir=5)  # pyright: ignore[reportArgumentType]
