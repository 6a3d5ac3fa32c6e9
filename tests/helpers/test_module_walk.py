"""Which modules `instrument` looks through in tests: those in which it would find something."""

import sys
import types

import pytest

import slimguard
from slimguard.scripts import instrumentation
from tests.helpers import module_walk


@pytest.fixture
def walk(monkeypatch):
    monkeypatch.setattr(instrumentation, 'loaded_modules', module_walk.everywhere)
    module_walk.pass_over_libraries()
    return lambda: [module for _, module in instrumentation.loaded_modules()]


def test_most_are_passed_over(walk):
    assert len(walk()) < len(module_walk.everywhere()) / 5
    assert not any(module is sys for module in walk())


def test_those_of_tests_are_not_nor_what_is_loaded_since_or_again(walk, monkeypatch):
    since, again = types.ModuleType('a_script'), types.ModuleType('json')
    monkeypatch.setitem(sys.modules, 'a_script', since)
    monkeypatch.setitem(sys.modules, 'json', again)
    for module in (since, again, sys.modules[__name__], sys.modules['__main__']):
        assert any(module is each for each in walk())


def test_the_same_is_replaced_as_in_a_walk_through_all(walk, monkeypatch):
    quickly = replaced()
    monkeypatch.setattr(instrumentation, 'loaded_modules', module_walk.everywhere)
    assert quickly == replaced()
    names = {name for _, name in quickly}
    assert {'create_train_op', 'train', 'latest_checkpoint', 'add_check_numerics_ops'} <= names


def replaced():
    """The modules, and the names in them, that have something else while `instrument` is on."""
    before = values()
    with slimguard.instrument():
        during = values()
    assert values() == before
    return {key for key in before if during[key] != before[key]}


def values():
    return {
        (module, name): id(value)
        for module, loaded in module_walk.everywhere()
        for name, value in list(getattr(loaded, '__dict__', {}).items())
        if not module.startswith('slimguard')
    }
