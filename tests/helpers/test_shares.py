"""The shares of the tests that CI's environments run: together they are all tests, and no less."""

import argparse
import types
from typing import NamedTuple, Tuple

import pytest

from tests import conftest

pytestmark = pytest.mark.no_tensorflow


class Item(NamedTuple):
    nodeid: str
    markers: Tuple[str, ...] = ()

    def get_closest_marker(self, name):
        return name if name in self.markers else None


ITEMS = [Item('tests/test_grid.py::test_cells[%d-%d]' % divmod(n, 3)) for n in range(27)]
ITEMS += [Item('tests/test_more.py::test_pair[%d]' % n) for n in range(2)]
ITEMS += [Item('tests/test_more.py::test_alone_%d' % n) for n in range(40)]
ITEMS += [Item('tests/test_slow.py::test_long[%d]' % n, ('slow',)) for n in range(11)]


def selected(items=ITEMS, share=None, slow_share=None, cells=None, tell=None):
    values = {'--share': share, '--share-slow': slow_share, '--cells': cells, '--tell': tell}
    left = []
    hook = types.SimpleNamespace(pytest_deselected=lambda items: left.extend(items))
    config = types.SimpleNamespace(getoption=values.get, hook=hook)
    kept = list(items)
    conftest.pytest_collection_modifyitems(config, kept)
    assert sorted(kept + left) == sorted(items)
    return kept


@pytest.mark.parametrize(
    'option',
    ['--share=7/6', '--share=0/3', '--share-slow=-1/3', '--plain-graphs=x', '--share=', '--tell=/'],
)
def test_a_wrong_value_is_named_with_what_it_should_be(option, capsys):
    parser = argparse.ArgumentParser()
    parser.addoption = parser.add_argument
    conftest.pytest_addoption(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([option])
    name, _, value = option.partition('=')
    expected = (
        'cannot be written: ' if name == '--tell' else 'is not N/M, with 1 <= N <= M, such as'
    )
    assert 'argument %s: %r %s' % (name, value, expected) in capsys.readouterr().err


@pytest.mark.parametrize('option', ['share', 'slow_share'])
def test_each_test_is_in_one_share(option):
    first, second = (selected(**{option: (number, 2)}) for number in (1, 2))
    common = set(first) & set(second)
    assert set(first) | set(second) == set(ITEMS)
    assert common == (set() if option == 'share' else set(ITEMS[:-11]))
    assert set(first) - common and set(second) - common


def numbers_of_cells(kept):
    """How many of the grid, of the pair, of those with one cell, and of the slow ones."""
    files = [item.nodeid.partition('::')[0] for item in kept]
    alone = sum('_alone_' in item.nodeid for item in kept)
    return (
        files.count('tests/test_grid.py'),
        files.count('tests/test_more.py') - alone,
        alone,
        files.count('tests/test_slow.py'),
    )


def test_of_the_cells_of_each_test_most_run_and_elsewhere_the_others():
    most, others = selected(cells='most'), selected(cells='others')
    assert set(most) | set(others) == set(ITEMS)
    assert numbers_of_cells(most) == (18, 1, 40, 11)
    assert numbers_of_cells(others) == (9, 1, 40, 11)
    # Of a grid with three columns, not one column.
    assert len({item.nodeid[-2] for item in others if 'grid' in item.nodeid}) == 3


def test_one_cell_is_one_of_the_others():
    one = selected(cells='one')
    assert numbers_of_cells(one) == (1, 1, 40, 11)
    assert set(one) <= set(selected(cells='others'))


@pytest.mark.parametrize('which', ['most', 'others', 'one'])
def test_not_shared_out_is_what_some_tensorflow_skips(which):
    cells = [Item('tests/test_old.py::test_names[%d]' % n, ('not_shared',)) for n in range(6)]
    assert set(cells) <= set(selected(ITEMS + cells, cells=which))


def test_where_one_cell_runs_no_test_does_that_needs_no_tensorflow():
    only_python = Item('tests/test_python.py::test_words', ('no_tensorflow',))
    assert only_python in selected(ITEMS + [only_python], cells='others')
    assert only_python not in selected(ITEMS + [only_python], cells='one')


def test_what_is_left_out_is_told_by_names_that_no_parameter_is_in(tmp_path, monkeypatch):
    monkeypatch.setenv('PYTEST_XDIST_WORKER', 'gw0')  # the others say the same, and need not
    told = tmp_path / 'told'
    renamed = [Item('tests/test_more.py::test_%d[other names %d]' % divmod(n, 3)) for n in range(9)]
    left = []
    for items in renamed, [Item(item.nodeid.replace('other', 'some')) for item in renamed]:
        assert len(selected(items, cells='most', tell=str(told))) == 6
        left.append(told.read_text().splitlines())
        told.unlink()
    assert left[0] == left[1]
    assert sorted(line[:-8] for line in left[0]) == [
        'left tests/test_more.py::test_%d' % n for n in range(3)
    ]
    assert {line[-8:] for line in left[0]} <= {'[0 of 3]', '[1 of 3]', '[2 of 3]'}


def test_each_of_two_workers_begins_with_slow_tests():
    kept = selected()
    half = (len(kept) + 1) // 2
    slow = [number for number, item in enumerate(kept) if item.markers]
    assert slow == [*range(6), *range(half, half + 5)]
