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


@pytest.mark.full
def test_what_became_of_one_is_beside_its_own_checkpoints(folders):
    train_both(folders)
    healthy, ill = folders
    assert records_in(healthy) == []
    assert [record['action'] for record in records_in(ill)] == ['rollback']
    with open(str(ill / 'slimguard' / 'learning_rate.json')) as file:
        assert json.load(file)['factor'] == 0.5
    assert not (healthy / 'slimguard' / 'learning_rate.json').exists()
    for folder, is_lower in zip(folders, (False, True)):  # a restart has its folder's own factor
        with slimguard.instrument('rollback:3x0.5', capture=False), LogLines() as lines:
            Model(folder).train(6)
        assert any('learning rate is x0.5' in line for line in lines) == is_lower


@pytest.mark.full
def test_the_checkpoint_to_begin_at_again_is_of_the_one_that_was_ruined(folders):
    with slimguard.instrument('raise', capture=False), LogLines() as lines:
        healthy = Model(folders[0])
        ill = Model(folders[1], bad=lambda draw: draw >= 25, value=1e15)
        with pytest.raises(slimguard.NanLossError, match='the weights are taken for ruined'):
            for _ in range(10):
                ill.train(4)
                healthy.train(4)
    begins = [line for line in lines if 'a restart begins at' in line]
    assert len(begins) == 1 and str(folders[1]) in begins[0]


def trained_by(model, steps=BAD + 4):
    """Trains; returns how far the model's weights moved."""
    before = model.session.run(model.weights)
    model.train(steps)
    return abs(model.session.run(model.weights) - before).sum()


class Written(Model):
    """A model whose summaries are written from the start, and which saves late."""

    def __init__(self, folder, bad=(), makes_writer=True):
        Model.__init__(self, folder, bad)
        with self.graph.as_default():
            self.weights = tf1.trainable_variables()[0]
            if makes_writer:
                tf1.summary.FileWriter(str(folder)).close()

    def train(self, steps):
        for _ in range(steps):
            self.session.run(self.train_op)
        self.saver.save(self.session, str(self.folder / 'model.ckpt'), self.step)


def search(folders, **options):
    """Trains a model that rolls back, then a healthy one; how far each moved, and the log lines."""
    healthy, ill = folders
    on_nan = 'rollback:3x0.5'
    with slimguard.instrument(on_nan, capture=False, **options), LogLines() as lines:
        went = [trained_by(Written(ill, bad=(BAD,))), trained_by(Written(healthy))]
    return went, lines


@pytest.mark.full
@pytest.mark.parametrize('gives_logdir', [False, True])
def test_a_later_model_does_not_train_with_the_rate_of_an_earlier_one(folders, gives_logdir):
    """As in a search for hyperparameters; each model writes summaries from its start."""
    options = {'logdir': folders[0].parent / 'all'} if gives_logdir else {}
    plain = [trained_by(Written(folder)) for folder in (folders[1], folders[0])]
    went, lines = search(folders, **options)
    assert went[1] == plain[1] and went[0] != plain[0]
    assert not any('an earlier run' in line for line in lines)
    assert not (folders[0] / 'slimguard' / 'learning_rate.json').exists()


@pytest.mark.full
def test_a_writer_that_is_given_a_graph_is_that_of_the_graph(folders):
    with slimguard.instrument('skip', capture=False):
        first = Written(folders[0], makes_writer=False)
        second = Written(folders[1], bad=(BAD,), makes_writer=False)
        for model in (first, second):
            tf1.summary.FileWriter(str(model.folder), model.graph).close()
        second.train(BAD + 4)
    assert [record['action'] for record in records_in(folders[1])] == ['skip']
    assert not (folders[0] / 'slimguard').exists()
