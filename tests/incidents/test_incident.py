"""Incidents, and the error that carries one."""

import ast
import dataclasses
import pathlib
import pickle

import pytest

import slimguard
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.incidents.record_file import IncidentFile
from slimguard.training.open_incident import OpenIncident
from tests.helpers.models import Linear, train_quietly


def incident(**changes):
    values = dict(
        step=4,
        loss=float('nan'),
        reason='not finite: gradient of conv1/weights',
        tensors=('gradient of conv1/weights',),
        strategy='hook',
        time=0.0,
    )
    values.update(changes)
    return Incident(**values)


def test_the_error_says_where_what_and_whether_anything_was_written():
    said = str(NanLossError(incident()))
    assert 'global step 4' in said
    assert 'gradient of conv1/weights' in said
    assert 'update not applied' in said
    assert 'the update was written' in str(NanLossError(incident(held=False)))
    assert str(incident(step=None, loss=None)).startswith('(no global step): not finite')
    assert incident(step=None, loss=1.5).where == '(no global step, loss 1.5)'


def test_the_error_ends_with_a_command_whose_path_is_there(tmp_path):
    logdir, kept = str(tmp_path / 'my logs'), tmp_path / 'my logs' / 'slimguard' / 'step-4'
    error = NanLossError(incident(bundle=str(kept), advice='train more slowly'), logdir)
    assert str(error).splitlines()[-1] == 'what to do: train more slowly'
    kept.mkdir(parents=True)
    assert str(error).splitlines()[-1] == "to run it again: python -m slimguard replay '%s'" % kept
    IncidentFile(logdir).make()
    last = "to see what happened: python -m slimguard report '%s'" % logdir
    assert str(error).splitlines()[-1] == str(pickle.loads(pickle.dumps(error))).split('\n')[-1]
    assert str(error).splitlines()[-1] == last


def test_an_incident_never_changes():
    for name in [field.name for field in dataclasses.fields(Incident)]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(incident(), name, None)


@pytest.mark.full
def test_incidents_are_made_in_one_file():
    package = pathlib.Path(slimguard.__file__).parent
    makers = {
        path.name
        for path in package.rglob('*.py')
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, 'id', None) in ('Incident', 'cls')
        if node.func.id == 'Incident' or path.name == 'incident.py'
    }
    assert makers == {'incident.py'}


def test_what_is_handled_grows_by_new_incidents(tmp_path):
    first = incident()
    handled = OpenIncident(first)
    error = NanLossError(first)
    handled.note(action='raise', bundle=str(tmp_path))
    handled.refresh(error)
    assert first.action is None
    assert error.incident is handled.incident and 'replay %s' % tmp_path in str(error)
    handled.add_version(first)  # an older version of the incident changes nothing
    assert handled.incident.action == 'raise'


def test_an_error_about_another_incident_stays_as_it_is():
    handled = OpenIncident(incident())
    another = incident(step=7)
    error = NanLossError(another)
    handled.refresh(error)
    handled.note(action='raise')
    assert error.incident is another


@pytest.mark.full
def test_the_policys_callable_sees_the_incident_before_and_the_list_has_it_after(tmp_path):
    seen = []

    def choose(found):
        assert hook.incidents[-1] is found  # in the list before the policy decides
        seen.append(found)
        return 'skip'

    model = Linear(bad=(2,))
    hook = slimguard.NanLossHook(model.loss, on_nan=choose)
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    train_quietly(train_op, tmp_path, hooks=[hook])
    (before,), (after,) = seen, hook.incidents
    assert before.action is None and after.action == 'skip'
    assert before.diagnosis == after.diagnosis and 'in row 1' in after.diagnosis
    assert (before.step, before.reason, before.time) == (after.step, after.reason, after.time)


@pytest.mark.full
def test_an_error_that_the_policys_callable_raises_tells_what_was_found(tmp_path):
    def give_up(found):
        raise NanLossError(found)

    model = Linear(bad=(2,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    with pytest.raises(NanLossError) as caught:
        train_quietly(train_op, tmp_path, on_nan=give_up)
    assert caught.value.incident.action == 'on_nan_loss'
    assert 'in row 1' in str(caught.value) and 'report' in str(caught.value)


@pytest.mark.full
def test_a_subclass_may_hand_on_an_incident_that_tells_more(tmp_path):
    class Telling(slimguard.NanLossHook):
        def on_nan_loss(self, run_context, incident):
            assert incident is self.incidents[-1] and incident.action == 'on_nan_loss'
            mine = dataclasses.replace(incident, reason='mine')
            super().on_nan_loss(run_context, mine)

    model = Linear(bad=(2,))
    hook = Telling(model.loss, on_nan='skip')
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    train_quietly(train_op, tmp_path, hooks=[hook])
    assert [(each.reason, each.action) for each in hook.incidents] == [('mine', 'skip')]
