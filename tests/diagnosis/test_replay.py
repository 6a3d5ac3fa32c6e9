"""The replay: the failure comes back out of its bundle, elsewhere, and nothing else is needed."""

import os
import shlex
import shutil

import numpy as np
import pytest
import tensorflow as tf

from slimguard.diagnosis import bundle, replay
from slimguard.diagnosis.bad_rows import batch_size, without_rows
from slimguard.diagnosis.bundle import arrays
from slimguard.diagnosis.rerun_step import Step
from tests.diagnosis.test_bundle import edit_json
from tests.helpers import zoo
from tests.helpers.bundles import write
from tests.helpers.children import forked_python

tf1 = tf.compat.v1


@pytest.fixture(scope='module')
def bundles(tmp_path_factory):
    """A bundle of each training of the zoo, by name; made when it is asked for."""
    logdir = tmp_path_factory.mktemp('zoo')

    class Bundles(dict):
        def __missing__(self, name):
            with tf.Graph().as_default():
                tf1.set_random_seed(1)
                self[name] = write(zoo.failed(name), logdir / name)
            return self[name]

    return Bundles()


@pytest.mark.parametrize('name', sorted(zoo.ZOO)[::3])
def test_the_failure_comes_back_with_the_same_loss_and_diagnosis(bundles, name):
    it = bundle.read(bundles[name])
    with Step(it.exported, it.variables, it.values) as step:
        found = replay.replay(step)
        assert found.came_back
        assert str(found.diagnosis) == it.text
        loss = step.session.run(step.gate.loss, step.feed)
        np.testing.assert_equal(float(loss), float(it.incident['loss']))


SCRIPT = """
import sys
from slimguard.diagnosis import replay
for path in sys.argv[1:]:
    assert replay.main(path) == 0, path
"""


def test_it_needs_nothing_but_the_bundle_and_a_fresh_process(bundles, tmp_path):
    names = ['log_of_zero', 'dropout_decides', 'a_feed']
    # Moved, as to another machine.
    paths = [copy_of(bundles[name], tmp_path, name) for name in names]
    run = forked_python('-c', SCRIPT, *paths, cwd=str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count('The failure came back') == len(paths)
    for name in names:
        assert zoo.ZOO[name].says in run.stdout


def test_a_bundle_of_tensorflow_1_15_replays_here(capsys):
    # It has a cond, a loop, strings, a py_func and moving averages; see data/make_bundle.py.
    path = os.path.join(os.path.dirname(__file__), '..', 'data', 'made_by_tf115')
    assert replay.main(path, without=2) == 0
    said = capsys.readouterr().out
    first, again, *diagnosis, without = said.splitlines()
    assert first.endswith('made with TensorFlow 1.15.5')
    assert again.startswith('The failure came back: not finite: loss')
    assert diagnosis[0] == 'in the input: bad data: 1 NaN among 768 values, in row 2'
    assert any('train.py:25' in line for line in diagnosis)
    assert without.endswith(' the step is clean.')


def test_a_step_that_is_finite_after_all_is_exit_code_1(bundles, tmp_path, capsys):
    path = copy_of(bundles['a_feed'], tmp_path)
    values = bundle.read(path).values
    save_values(path, dict(values, **{'images:0': np.ones_like(values['images:0'])}))
    assert replay.main(path) == 1
    assert 'The failure did not come back' in capsys.readouterr().out


def copy_of(path, tmp_path, name='copy'):
    return shutil.copytree(path, str(tmp_path / name))


def save_values(path, values):
    """Puts other values into a bundle."""
    with open(os.path.join(path, 'drawn.npz'), 'wb') as file:
        arrays.save(file, values.items())


def test_an_op_that_is_not_known_here_is_named(bundles, tmp_path, capsys):
    path = copy_of(bundles['log_of_zero'], tmp_path)
    name = os.path.join(path, 'step.pb')
    with open(name, 'rb') as file:
        content = file.read()
    with open(name, 'wb') as file:
        file.write(content.replace(b'\x12\x03Log', b'\x12\x03Lug'))
    assert replay.main(path) == 2
    said = capsys.readouterr().err
    assert 'Lug' in said and 'which TensorFlow %s made' % tf.__version__ in said


def test_without_the_bad_row_the_step_is_clean(bundles, capsys):
    assert replay.main(bundles['a_label'], without=2) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        'Without row 2 (a copy of row 0 in its place) the step is clean.'
    )


def test_without_one_of_two_bad_rows_it_is_still_bad(bundles, capsys):
    assert replay.main(bundles['a_feed'], without=0) == 0
    said = capsys.readouterr().out
    assert 'bad data: 1 NaN and 1 Inf among 24 values, in rows 0, 3\n' in said
    changed = said.splitlines()[-1]
    assert changed.startswith(
        'Without row 0 (a copy of row 1 in its place) the step is still bad: '
    )
    assert '1 NaN among 24 values, in row 3' in changed


def test_a_bad_row_is_not_replaced_with_another_bad_row(bundles, tmp_path, capsys):
    path = copy_of(bundles['log_of_zero'], tmp_path)
    values = bundle.read(path).values
    ((name, batch),) = [(n, v) for n, v in values.items() if v.ndim == 2 and not v[2].all()]
    batch = np.array(batch)
    batch[0] = batch[2]  # finite, as is the log's input in both rows
    save_values(path, dict(values, **{name: batch}))
    assert replay.main(path, without=2) == 0
    said = capsys.readouterr().out
    assert 'in rows 0, 2\n' in said
    changed = said.splitlines()[-1]
    assert changed.startswith('Without row 2 (a copy of row 1 in its place) the step is still bad')
    assert ', in row 0;' in changed


def test_what_is_bad_now_and_was_not_in_the_training_is_said(bundles, tmp_path, capsys):
    differs = 'In the training this was bad: gradient of w; ReLU or max-pooling may be'
    path = copy_of(bundles['log_of_zero'], tmp_path)
    assert replay.main(path) == 0
    assert 'In the training' not in capsys.readouterr().out
    edit_json(path, lambda it: it['incident'].update(tensors=['gradient of w']))
    assert replay.main(path) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith(differs)


def test_what_goes_with_the_batch_is_replaced_with_the_row(bundles):
    it = bundle.read(bundles['dropout_decides'])
    with Step(it.exported, it.variables, it.values) as step:
        copied, replaced = without_rows(step, [0], batch_size(step))
        batch = [tensor for tensor, value in step.feed.items() if value.ndim]
        assert len(batch) == 2  # the batch, and the mask of its dropout
        for tensor in batch:
            drawn = step.feed[tensor]
            np.testing.assert_array_equal(replaced[tensor][0], drawn[copied])
            np.testing.assert_array_equal(replaced[tensor][1:], drawn[1:])


@pytest.mark.parametrize('row, says', [(6, 'rows 0 to 5'), (-1, 'rows 0 to 5')])
def test_a_row_that_is_not_there_is_an_error(bundles, capsys, row, says):
    assert replay.main(bundles['a_label'], without=row) == 2
    assert says in capsys.readouterr().err


def test_the_shell_has_session_graph_and_feed(bundles):
    lines = [
        'print("loss", session.run(gate.loss, feed), session.graph is graph)',
        'print("bad", [str(l) for l, b in zip(gate.labels, session.run(gate.bad, feed)) if b])',
        'print("phase", diagnosis.phase, sorted(values))',
    ]
    script = (
        'import sys; from slimguard.diagnosis.replay import main;'
        'sys.exit(main(sys.argv[1], shell=True))'
    )
    run = forked_python('-c', script, bundles['a_feed'], input='\n'.join(lines) + '\n')
    assert run.returncode == 0, run.stderr
    assert 'loss nan True' in run.stdout
    assert "bad ['value:loss" in run.stdout
    assert "phase input ['images:0', 'keep:0'" in run.stdout


def test_a_replay_leaves_the_variables_as_they_were(bundles):
    it = bundle.read(bundles['log_of_zero'])
    before = {n: v.tobytes() for p in it.variables(['w', 'global_step']) for n, v in p.items()}
    good = {
        name: np.where(value == 0, 0.5, value).astype(value.dtype)
        for name, value in it.values.items()
    }
    with Step(it.exported, it.variables, good) as step:
        # Also after a step that is good this time, and so updates the variables.
        assert not replay.replay(step).came_back
        after = step.session.run({name: read_of(step.graph, name) for name in before})
    assert {name: value.tobytes() for name, value in after.items()} == before


def read_of(graph, name):
    variable = graph.get_operation_by_name(name)
    if variable.type != 'VarHandleOp':
        return variable.outputs[0]
    with graph.as_default():
        dtype = variable.get_attr('dtype')
        return tf.raw_ops.ReadVariableOp(resource=variable.outputs[0], dtype=dtype)


# The arguments of the command, and its results.


def test_of_a_log_directory_the_newest_bundle_is_run_and_all_are_listed(tmp_path, capsys):
    failed = zoo.failed('log_of_zero')
    logdir = tmp_path / 'my logs'
    assert replay.main(write(failed, logdir, step=30)) == replay.main(logdir)
    one, same = capsys.readouterr().out.split('made with')[:2]
    assert one.count('step-30') == same.count('step-30') == 1  # a single bundle is not listed
    made = [str(logdir / 'slimguard' / 'step-30'), write(failed, logdir, step=4)]
    shutil.copytree(str(logdir / 'slimguard'), str(tmp_path / 'copied'))
    for folder in (str(logdir), logdir, os.fsencode(str(logdir))):
        assert replay.main(folder, without=1) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith('2 bundles; ')
        assert [line.split('  ')[0] for line in said[1:3]] == [shlex.quote(path) for path in made]
        assert all('  not finite: ' in line for line in said[1:3])
        assert said[4].startswith(made[-1] + ', made with TensorFlow')
        assert said[-1].startswith('Without row 1 ')
    assert replay.main(tmp_path / 'copied') == 0
    assert 'copied/step-4, made with TensorFlow' in capsys.readouterr().out


def test_a_folder_that_is_neither_is_told_what_was_looked_for(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / 'nothing'):
        assert replay.main(str(folder)) == 2
        said = capsys.readouterr()
        assert 'it is no bundle (a folder with incident.json), and there is none in it' in said.err
        assert str(folder / 'slimguard' / 'step-...') in said.err
        assert said.out == ''
    assert os.listdir(str(tmp_path)) == []


@pytest.mark.parametrize('path', ['', 'a\0b', b'\xff\xfe', 's3q://nowhere/a'])
def test_a_path_that_cannot_be_is_exit_code_2(path, capsys):
    assert replay.main(path) == 2
    assert capsys.readouterr().err.startswith('slimguard: cannot replay')


def test_whatever_goes_wrong_is_a_sentence_and_exit_code_2(bundles, monkeypatch, capsys):
    def explode(*_):
        raise ZeroDivisionError('by \x1b nothing')

    monkeypatch.setattr(replay, 'describe', explode)
    assert replay.main(bundles['a_label']) == 2
    said = capsys.readouterr().err
    assert said.endswith(': ZeroDivisionError: by \\x1b nothing\n')

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, 'describe', interrupt)
    with pytest.raises(KeyboardInterrupt):
        replay.main(bundles['a_label'])


def test_a_reader_that_has_gone_is_no_traceback(bundles):
    reading, writing = os.pipe()
    os.close(reading)
    command = '-m', 'slimguard', 'replay', bundles['a_label']
    run = forked_python(*command, stdout=writing, text=False)
    os.close(writing)
    assert run.returncode == 141  # as of any command, see terminal.streams
    assert b'Traceback' not in run.stderr and b'BrokenPipe' not in run.stderr
