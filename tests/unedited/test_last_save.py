"""The last save is like the script's own; SIGTERM and Ctrl-C in loops that never ask to stop."""

import contextlib
import os
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.unedited.script_saves import ScriptSaves
from tests.helpers.checkpoints import newest, truncate, write
from tests.helpers.models import Linear, LogLines
from tests.helpers.signals import press_ctrl_c

tf1 = tf.compat.v1


pytestmark = pytest.mark.usefixtures('ctrl_c_is_pythons')


class Script:
    """A session with a variable, and a count of steps by train op."""

    def __init__(self, folder):
        self.path = os.path.join(str(folder), 'm.ckpt')
        self.steps = {}
        self.step = tf1.train.get_or_create_global_step()
        tf1.get_variable('w', initializer=1.0)
        self.saver = tf1.train.Saver()
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())
        self.last = ScriptSaves(lambda: self.steps)

    def save(self, path=None, *args, saver=None, **kwargs):
        path = path or self.path
        saver = saver or self.saver
        saved = saver.save(self.session, path, *args, **kwargs)
        size = len(tf1.train.list_variables(saved))
        self.last.note_saved(size, saved, saver, path, *args, **kwargs)

    def again(self):
        return os.path.basename(self.last.again(self.session))


class TestWhatItIsCalled:
    @pytest.mark.full
    def test_a_number_of_steps_goes_on_by_the_steps(self, tmp_path):
        script = Script(tmp_path)
        script.steps.update(generator=3, discriminator=6)
        script.save(None, 100)
        script.steps.update(generator=7, discriminator=9)
        script.save(None, 104)
        script.steps.update(generator=9, discriminator=12)
        assert script.again() == 'm.ckpt-107'  # by the train op that ran most often since

    @pytest.mark.parametrize('first', [7, 6])
    def test_the_first_number_counts_from_zero_or_one(self, first, tmp_path):
        script = Script(tmp_path)
        script.steps['train'] = 7
        script.save(global_step=np.int64(first))
        script.steps['train'] = 9
        assert script.again() == 'm.ckpt-%d' % (first + 2)

    def test_a_number_of_something_else_stays(self, tmp_path):
        script = Script(tmp_path)
        saved = [(1, 100), (2, 200)]
        for epoch, steps in saved:
            script.steps['train'] = steps
            script.save(None, epoch)
        newest_before = newest(tmp_path)
        script.steps['train'] += 42
        assert script.again() == 'm.ckpt-%d-last' % saved[-1][0]
        assert newest(tmp_path) == newest_before  # the script resumes from it by its number

    def test_the_global_step_counts_itself(self, tmp_path):
        script = Script(tmp_path)
        script.session.run(script.step.assign(50))
        script.steps['train'] = 7
        script.save(None, 50)
        script.steps['train'] = 16
        script.session.run(script.step.assign(41))  # by a rollback
        assert script.again() == 'm.ckpt-41'

    @pytest.mark.parametrize('first', [0, 1])
    def test_a_small_number_may_be_of_a_step_or_of_an_epoch(self, first, tmp_path):
        script = Script(tmp_path)
        script.steps['train'] = 1
        script.save(None, first)
        script.steps['train'] = 15
        assert script.again() == 'm.ckpt-%d-last' % first
        script.save(None, first + 14)  # now it is known
        script.steps['train'] = 17
        assert script.again() == 'm.ckpt-%d' % (first + 16)

    def test_a_variable_says_it_itself(self, tmp_path):
        script = Script(tmp_path)
        script.save(global_step=script.step)
        script.session.run(script.step.assign(9))
        script.steps['train'] = 4
        assert script.again() == 'm.ckpt-9'

    def test_a_path_without_a_number_is_not_overwritten(self, tmp_path):
        script = Script(tmp_path)
        script.saver = tf1.train.Saver(max_to_keep=1)
        for _ in range(2):
            script.save()
        before = (tmp_path / 'm.ckpt.data-00000-of-00001').stat().st_mtime_ns
        assert script.again() == 'm.ckpt-last'
        assert (tmp_path / 'm.ckpt.data-00000-of-00001').stat().st_mtime_ns == before
        assert newest(tmp_path) == script.path
        script.saver.restore(script.session, script.path + '-last')

    def test_a_part_of_the_state_is_nothing_to_resume_from(self, tmp_path):
        script = Script(tmp_path)
        script.steps['train'] = 4
        script.save(None, 4)
        script.save(script.path + '.part', saver=tf1.train.Saver([script.step]))
        script.steps['train'] = 6
        assert script.again() == 'm.ckpt-6'

    def test_the_other_arguments_are_as_they_were(self, tmp_path):
        script = Script(tmp_path)
        script.save(None, script.step, 'my_state', write_meta_graph=False)
        assert script.again() == 'm.ckpt-0'
        assert newest(tmp_path) is None
        assert tf1.train.latest_checkpoint(str(tmp_path), 'my_state').endswith('m.ckpt-0')
        assert not os.path.exists(script.path + '-0.meta')


@pytest.mark.full
def test_a_rollback_takes_no_checkpoint_of_a_part(tmp_path):
    bad = {3}
    with slimguard.instrument(on_nan='rollback', logdir=tmp_path):
        model = Linear(bad=lambda draw: draw in bad)
        train_op = model.minimize()
        whole, part = tf1.train.Saver(), tf1.train.Saver([model.weights])
        path = os.path.join(str(tmp_path), 'm.ckpt')
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            train(session, train_op, 1)
            whole.save(session, path, global_step=model.step)
            train(session, train_op, 2)
            part.save(session, path + '.part', global_step=model.step)
            train(session, train_op, 1)
            assert session.run(model.step) == 1


def train(session, train_op, steps):
    for _ in range(steps):
        session.run(train_op)


def test_names_of_epochs_are_not_compared_with_steps(tmp_path):
    with slimguard.instrument(on_nan='rollback', logdir=tmp_path):
        model = Linear(bad=[45])
        train_op = model.minimize()
        saver = tf1.train.Saver()
        path = os.path.join(str(tmp_path), 'm.ckpt')
        with tf1.Session() as session, LogLines() as lines:
            session.run(tf1.global_variables_initializer())
            for epoch in (1, 2):
                train(session, train_op, 20)
                saver.save(session, path, global_step=epoch)
            train(session, train_op, 6)
            restored = session.run(model.step)
    assert 20 < restored < 40  # a snapshot, older than the newest checkpoint
    begins = 'is not saved, so a restart begins at %s-2. ' % path
    assert [line for line in lines if begins in line and 'do not count steps' in line]


@contextlib.contextmanager
def saved_after_two_steps(model, folder):
    """A session, its train op and the prefix of its checkpoint, which is named with a 2."""
    train_op = model.minimize()
    saver = tf1.train.Saver()
    path = os.path.join(str(folder), 'm.ckpt')
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        train(session, train_op, 2)
        saver.save(session, path, global_step=2)
        yield session, train_op, path


def test_a_signal_between_two_steps_acts_at_once(tmp_path):
    with slimguard.instrument(on_nan='skip'):
        with saved_after_two_steps(Linear(), tmp_path) as (session, train_op, path):
            train(session, train_op, 3)
            with LogLines() as lines, pytest.raises(KeyboardInterrupt) as caught:
                press_ctrl_c()
            assert newest(tmp_path) == path + '-5'
            told = ['Ctrl-C; saving before the end.', 'Ctrl-C: saved %s-5 (global step 5)' % path]
            assert [line for line in lines if line.startswith('Ctrl-C')] == told
            assert not [line for line in lines if 'finite state' in line]
            assert [each.name for each in caught.traceback][-2:] == [
                'press_ctrl_c',
                'raising_shortly',
            ]
            # The script has caught the KeyboardInterrupt and goes on; the next Ctrl-C works, too.
            train(session, train_op, 2)
            with pytest.raises(KeyboardInterrupt):
                press_ctrl_c()
            assert newest(tmp_path) == path + '-7'


def test_a_signal_in_a_save_of_the_scripts_own_names_what_is_saved(tmp_path):
    with slimguard.instrument(on_nan='skip'):
        train_op = Linear().minimize()
        saver = tf1.train.Saver()
        path = os.path.join(str(tmp_path), 'model')
        with tf1.Session() as session, LogLines() as lines:
            session.run(tf1.global_variables_initializer())
            for epoch in (5, 6):
                train(session, train_op, 3)
                if epoch == 6:
                    saver.export_meta_graph = lambda *_, **__: press_ctrl_c()
                with contextlib.suppress(KeyboardInterrupt):
                    saver.save(session, path, global_step=epoch)
    said = 'Ctrl-C: saved %s-5-last (global step 6), newer than those beside it' % path
    assert said in lines


def test_the_number_of_a_save_counts_the_step_in_which_the_signal_came(tmp_path):
    with slimguard.instrument(on_nan='skip'):
        model = Linear(bad=lambda draw: draw == 4 and os.kill(os.getpid(), signal.SIGINT))
        with saved_after_two_steps(model, tmp_path) as (session, train_op, path):
            with pytest.raises(KeyboardInterrupt):
                train(session, train_op, 100)
    assert newest(tmp_path) == path + '-5'
    assert tf1.train.load_variable(path + '-5', 'global_step') == 5


def test_what_trains_in_another_thread_is_saved(tmp_path):
    with slimguard.instrument(on_nan='skip'):
        model = Linear()
        train_op = model.minimize()
        saver = tf1.train.Saver()
        path = os.path.join(str(tmp_path), 'm.ckpt')
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            saver.save(session, path, global_step=model.step)
            thread = threading.Thread(target=train, args=(session, train_op, 3))
            thread.start()
            thread.join()
            with pytest.raises(KeyboardInterrupt):
                press_ctrl_c()
    assert newest(tmp_path) == path + '-3'


def test_where_the_script_has_saved_nothing_a_line_says_so():
    with slimguard.instrument(on_nan='skip'):
        model = Linear()
        train_op = model.minimize()
        with tf1.Session() as session, LogLines() as lines:
            session.run(tf1.global_variables_initializer())
            train(session, train_op, 1)
            with pytest.raises(KeyboardInterrupt):
                press_ctrl_c()
    (line,) = [line for line in lines if 'the last finite state is not saved' in line]
    assert 'the script has saved nothing since its start' in line


def test_it_is_beside_the_others_though_the_script_went_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ('logs', 'input/logs'):
        (tmp_path / folder).mkdir(parents=True)
    with slimguard.instrument('raise', capture=False):
        model = Linear(bad=(6, 9))
        train_op = model.minimize()
        saver = tf1.train.Saver()
        with tf1.Session() as session, LogLines() as lines:
            session.run(tf1.global_variables_initializer())
            train(session, train_op, 4)
            saver.save(session, 'logs/m.ckpt', global_step=4)
            monkeypatch.chdir(tmp_path / 'input')
            for _ in range(2):  # a script that catches it and goes on is saved again
                with pytest.raises(slimguard.NanLossError):
                    train(session, train_op, 3)
    logs = str(tmp_path / 'logs')
    saved = [os.path.join(logs, name) for name in ('m.ckpt-4', 'm.ckpt-6', 'm.ckpt-8')]
    for each in saved[1:]:
        assert [line for line in lines if line.endswith('the last finite state is saved: ' + each)]
    assert tf1.train.get_checkpoint_state(logs).all_model_checkpoint_paths == saved
    assert not os.listdir('logs')


def test_a_handler_of_the_scripts_own_stays():
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(True))
    try:
        with slimguard.instrument(on_nan='skip'):
            model = Linear(bad=lambda draw: os.kill(os.getpid(), signal.SIGINT))
            train_op = model.minimize()
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                train(session, train_op, 1)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert heard


@pytest.mark.full
def test_a_session_that_outlives_the_guards_tells_of_itself(tmp_path, capfd):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        model = Linear(bad=(0, 1))
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        train(session, train_op, 1)
    assert 'this step wrote nothing' not in capfd.readouterr().err
    train(session, train_op, 1)
    assert 'this step wrote nothing' in capfd.readouterr().err


def restored(checkpoint):
    """The first element of the variable that a script restores from a checkpoint."""
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable('w', shape=[2])
        tf1.train.Saver([variable]).restore(session, checkpoint)
        return session.run(variable)[0]


class TestWhatIsResumedFrom:
    def test_is_a_good_checkpoint(self, tmp_path):
        *_, good, bad = write(tmp_path, [1.0, 2.0, 3.0])
        truncate(bad + '.data-00000-of-00001')
        before = (tmp_path / 'checkpoint').read_bytes()
        with slimguard.instrument(), LogLines() as lines:
            assert restored(bad) == 2.0
            assert restored(good) == 2.0
        assert [line for line in lines if 'is truncated' in line and 'resuming from' in line]
        assert (tmp_path / 'checkpoint').read_bytes() == before  # no file is changed
        assert tf1.train.latest_checkpoint(str(tmp_path)) == bad

    def test_is_what_there_is_where_nothing_is_good(self, tmp_path):
        (only,) = write(tmp_path, [float('nan')])
        with slimguard.instrument(), LogLines() as lines:
            assert np.isnan(restored(only))
        assert [line for line in lines if 'there is none that is good' in line]
