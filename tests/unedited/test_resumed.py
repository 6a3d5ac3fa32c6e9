"""A script that has resumed from its checkpoint, and not saved since."""

import json
import uuid

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import Linear, LogLines, folder_of_start, records_in

tf1 = tf.compat.v1


def run(folder, steps, every, bad=()):
    """Runs a script that names its checkpoints by a count of its own; returns the last count."""
    with tf1.Graph().as_default():
        model = Linear(bad=bad)
        train_op = model.minimize()
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            done, newest = 0, tf1.train.latest_checkpoint(folder)
            if newest is not None:
                saver.restore(session, newest)
                done = int(newest.rpartition('-')[2])
            while done < steps:
                session.run(train_op)
                done += 1
                if done % every == 0:
                    saver.save(session, folder + '/model.ckpt', done)
            return session.run(model.step)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'logs').mkdir()
    return 'logs'


def factor_in(folder):
    with open(folder + '/slimguard/learning_rate.json') as file:
        return json.load(file)['factor']


@pytest.mark.full
def test_the_next_rollback_lowers_the_rate_that_was_kept(folder):
    with slimguard.instrument('rollback:3x0.5', capture=False):
        run(folder, 30, 10, bad=(15,))
    assert factor_in(folder) == 0.5
    with slimguard.instrument('rollback:3x0.5', capture=False), LogLines() as lines:
        run(folder, 45, 20, bad=(4,))  # before its first save
    assert factor_in(folder) == 0.25
    assert any('learning rate is x0.5, as' in line for line in lines)
    assert not any('kept nowhere' in line for line in lines)


@pytest.mark.full
def test_the_record_goes_on_where_it_was(folder, tmp_path):
    with slimguard.instrument('skip', capture=False):
        run(folder, 30, 10)
    with slimguard.instrument('raise', capture=False), LogLines() as lines:
        with pytest.raises(slimguard.NanLossError):
            run(folder, 60, 20, bad=(4,))
    assert [record['action'] for record in records_in(tmp_path / 'logs')] == ['raise']
    assert not (tmp_path / 'slimguard-logs').exists()
    assert any('the script has saved nothing since its start' in line for line in lines)


@pytest.mark.full
def test_what_plain_training_left_is_not_written_to(folder, tmp_path):
    run(folder, 30, 10)
    before = sorted(path.name for path in (tmp_path / 'logs').iterdir())
    with slimguard.instrument('raise', capture=False), pytest.raises(slimguard.NanLossError):
        run(folder, 60, 20, bad=(4,))
    assert sorted(path.name for path in (tmp_path / 'logs').iterdir()) == before
    assert records_in(folder_of_start(tmp_path))


def test_a_count_of_its_own_is_known_after_one_save(folder):
    with slimguard.instrument('raise', capture=False):
        run(folder, 30, 10)
        with pytest.raises(slimguard.NanLossError):
            run(folder, 60, 20, bad=(14,))  # it saves at 40, and fails in the 45th step
    assert tf1.train.latest_checkpoint(folder).endswith('model.ckpt-44')
    with slimguard.instrument('raise', capture=False):
        assert run(folder, 60, 20) == 60


@pytest.mark.full
@pytest.mark.skipif(tf.__version__.startswith('1.'), reason='ram:// exists from TensorFlow 2.12 on')
def test_on_another_file_system_it_goes_on_as_well():
    logdir = 'ram://%s/logs' % uuid.uuid4().hex
    with slimguard.instrument('skip', capture=False):
        assert run(logdir, 30, 10, bad=(15,)) == 29
    with slimguard.instrument('rollback', capture=False), LogLines() as lines:
        run(logdir, 60, 20, bad=(4,))
    assert any('rolled back to %s/model.ckpt-20' % logdir in line for line in lines)
    with tf.io.gfile.GFile(logdir + '/slimguard/incidents.jsonl') as record:
        actions = [json.loads(line)['action'] for line in record if 'action' in line]
    assert actions == ['skip', 'rollback']
