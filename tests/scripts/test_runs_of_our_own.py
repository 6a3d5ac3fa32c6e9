"""Runs of slimguard's own are let pass by what guards those of a script."""

import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.diagnosis.bundle import paths as bundle_paths
from slimguard.scripts.train_steps import TrainSteps
from tests.helpers.models import Linear

tf1 = tf.compat.v1
slim = compat.import_slim()


def test_diagnosis_bundles_and_saves_are_not_searched_for_what_trains(tmp_path, monkeypatch):
    """That walked the graph for each, and looked among all objects for other sessions."""
    searched = []
    step_for = TrainSteps.step_for

    def noting(steps, fetches, fed=()):
        searched.append(str(fetches))
        return step_for(steps, fetches, fed)

    monkeypatch.setattr(TrainSteps, 'step_for', noting)
    model = Linear(bad=(1,))
    with slimguard.instrument(on_nan='skip'):
        train_op = slim.learning.create_train_op(model.loss, model.optimizer)
        slim.learning.train(train_op, str(tmp_path), number_of_steps=3, log_every_n_steps=0)
    assert len(bundle_paths(str(tmp_path))) == 1
    assert searched, 'the steps of the script were not looked at'
    own = [fetches for fetches in searched if 'slimguard/' in fetches and 'train_op' not in fetches]
    assert not own
