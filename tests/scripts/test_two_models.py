"""Two models in one script, each with a graph, a session and checkpoints of its own."""

import json

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import Linear, LogLines, records_in

tf1 = tf.compat.v1
BAD = 12


class Model:
    """A model that saves every fourth step in a folder of its own."""

    def __init__(self, folder, bad=(), value=float('nan')):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.graph = tf1.Graph()
        with self.graph.as_default():
            self.train_op = Linear(bad=bad, value=value).minimize()
            self.step = tf1.train.get_or_create_global_step()
            self.saver = tf1.train.Saver()
            self.session = tf1.Session()
            self.session.run(tf1.global_variables_initializer())

    def train(self, steps):
        for number in range(steps):
            self.session.run(self.train_op)
            if number % 4 == 0:
                self.saver.save(self.session, str(self.folder / 'model.ckpt'), self.step)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / 'healthy', tmp_path / 'ill'


def train_both(folders):
    with slimguard.instrument('rollback:3x0.5', capture=False):
        healthy, ill = Model(folders[0]), Model(folders[1], bad=(BAD,))
        healthy.train(BAD + 4)
        ill.train(BAD + 4)


def test_what_became_of_one_is_beside_its_own_checkpoints(folders):
    train_both(folders)
    healthy, ill = folders
    assert records_in(healthy) == []
    assert [record['action'] for record in records_in(ill)] == ['rollback']
    with open(str(ill / 'slimguard' / 'learning_rate.json')) as file:
        assert json.load(file)['factor'] == 0.5
    assert not (healthy / 'slimguard' / 'learning_rate.json').exists()


def test_a_restart_of_either_goes_on_with_its_own_learning_rate(folders):
    train_both(folders)
    for folder, is_lower in zip(folders, (False, True)):
        with slimguard.instrument('rollback:3x0.5', capture=False), LogLines() as lines:
            Model(folder).train(6)
        assert any('learning rate x0.5' in line for line in lines) == is_lower


def test_the_checkpoint_to_begin_at_again_is_of_the_one_that_was_ruined(folders):
    with slimguard.instrument('raise', capture=False), LogLines() as lines:
        healthy = Model(folders[0])
        ill = Model(folders[1], bad=lambda draw: draw >= 25, value=1e15)
        with pytest.raises(slimguard.NanLossError, match='the weights were ruined before'):
            for _ in range(10):
                ill.train(4)
                healthy.train(4)
    begins = [line for line in lines if 'a restart begins at' in line]
    assert len(begins) == 1 and str(folders[1]) in begins[0]
