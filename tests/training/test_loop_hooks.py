"""TensorFlow's own hooks under slimguard.train."""

import importlib
import io

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import Linear, LogLines

tf1 = tf.compat.v1


def train(hooks, number_of_steps=4, logdir=None, **kwargs):
    """Trains a linear model, with the hooks that `hooks` makes for it."""
    model = Linear()
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    hooks = hooks(model) + [slimguard.NanLossHook(model.loss)]
    loss = slimguard.train(
        train_op,
        logdir and str(logdir),
        number_of_steps=number_of_steps,
        log_every_n_steps=0,
        hooks=hooks,
        **kwargs,
    )
    return model, loss


def events_in(folder):
    tf1.summary.FileWriterCache.clear()  # writes what it holds
    (path,) = folder.glob('events*')
    return list(tf1.train.summary_iterator(str(path)))


@pytest.mark.parametrize('arguments', [{'num_steps': 2}, {'last_step': 2}])
def test_stop_at_step(arguments):
    model, _ = train(lambda model: [tf1.train.StopAtStepHook(**arguments)])
    assert model.batches.drawn == 2


def test_checkpoint_saver_and_its_listeners(tmp_path):
    class Listening(tf1.train.CheckpointSaverListener):
        calls = []

        def begin(self):
            self.calls.append('begin')

        def before_save(self, session, step):
            self.calls.append(('before_save', step))

        def after_save(self, session, step):
            self.calls.append(('after_save', step))

        def end(self, session, step):
            self.calls.append(('end', step))

    listening = Listening()
    train(
        lambda model: [
            tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[listening])
        ]
    )
    saves = [(call, step) for step in (0, 2, 4) for call in ('before_save', 'after_save')]
    assert listening.calls == ['begin'] + saves + [('end', 4)]
    assert tf1.train.latest_checkpoint(str(tmp_path)).endswith('model.ckpt-4')


def test_summary_saver(tmp_path):
    def hooks(model):
        summary = tf1.summary.scalar('loss', model.loss)
        return [tf1.train.SummarySaverHook(2, output_dir=str(tmp_path), summary_op=summary)]

    train(hooks)
    steps = [event.step for event in events_in(tmp_path) if event.summary.value]
    assert len(steps) == 2 and steps[1] - steps[0] == 2


def test_logging_tensor():
    with LogLines() as lines:
        train(lambda model: [tf1.train.LoggingTensorHook({'loss': model.loss}, every_n_iter=2)])
    assert sum(line.startswith('loss = ') for line in lines) == 2


def test_step_counter(tmp_path):
    train(lambda model: [tf1.train.StepCounterHook(every_n_steps=2, output_dir=str(tmp_path))])
    tags = [value.tag for event in events_in(tmp_path) for value in event.summary.value]
    assert tags == ['global_step/sec']


@pytest.mark.parametrize('fails', [True, False])
def test_nan_tensor(fails):
    """TensorFlow's own watches a tensor beside the loss, which no gate knows."""
    drawn = []

    def hooks(model):
        drawn.append(model.batches)
        number = tf.cast(
            tf1.py_func(lambda x: drawn[0].drawn, [model.batches.x], tf.int64), 'float'
        )
        return [tf1.train.NanTensorHook(tf.math.log(2.5 - number), fail_on_nan_loss=fails)]

    if fails:
        with pytest.raises(tf1.train.NanLossDuringTrainingError):
            train(hooks)
    else:
        train(hooks)
    assert drawn[0].drawn == 3


def test_final_ops():
    hook = []

    def hooks(model):
        hook.append(tf1.train.FinalOpsHook([model.step, model.weights]))
        return hook

    train(hooks)
    step, weights = hook[0].final_ops_values
    assert step == 4 and weights.shape == (3, 1)


def test_feed_fn():
    def hooks(model):
        return [tf1.train.FeedFnHook(lambda: {model.batches.x: [[0.0, 0.0, 0.0]] * 4})]

    model, loss = train(hooks)
    assert loss == 1.0 and model.batches.drawn == 0


def test_global_step_waiter():
    model, _ = train(lambda model: [tf1.train.GlobalStepWaiterHook(wait_until_step=0)])
    assert model.batches.drawn == 4


def test_profiler(tmp_path):
    model, _ = train(lambda model: [tf1.train.ProfilerHook(save_steps=2, output_dir=str(tmp_path))])
    assert model.batches.drawn == 4
    assert [path.stat().st_size > 100 for path in tmp_path.glob('timeline-*.json')]


def debug_hooks():
    # They lost their public name with TensorFlow 2.
    return importlib.import_module('tensorflow.python.debug.wrappers.hooks')


def test_dumping_debug(tmp_path):
    folder = tmp_path / 'dumps'
    model, loss = train(lambda model: [debug_hooks().DumpingDebugHook(str(folder))])
    assert np.isfinite(loss) and model.batches.drawn == 4
    assert len(list(folder.glob('run_*'))) == 4
    assert list(folder.glob('run_*/**/Mean_*'))


def test_local_cli_debug(monkeypatch, capsys):
    """Its prompt, before and after each run, is told to go on."""
    monkeypatch.setattr('sys.stdin', io.StringIO('run\n' * 20))
    asked = []

    class Seeing(debug_hooks().LocalCLIDebugHook):
        def before_run(self, run_context):
            asked.append(debug_hooks().LocalCLIDebugHook.before_run(self, run_context))
            return asked[-1]

    model, _ = train(lambda model: [Seeing(ui_type='readline')], number_of_steps=2)
    assert model.batches.drawn == 2
    assert all(request.options.debug_options.debug_tensor_watch_opts for request in asked)
    assert 'dumped tensor(s)' in capsys.readouterr().out
