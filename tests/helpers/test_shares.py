"""The shares of the tests that CI's environments run: together they are all tests, and no less."""

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


def selected(items=ITEMS, share=None, slow_share=None, cells=1, grids=1):
    values = {'--share': share, '--share-slow': slow_share, '--cells': cells, '--grids': grids}
    left = []
    hook = types.SimpleNamespace(pytest_deselected=lambda items: left.extend(items))
    config = types.SimpleNamespace(getoption=values.get, hook=hook)
    kept = list(items)
    conftest.pytest_collection_modifyitems(config, kept)
    assert sorted(kept + left) == sorted(items)
    return kept


@pytest.mark.parametrize('option', ['share', 'slow_share'])
def test_each_test_is_in_one_share(option):
    first, second = (selected(**{option: (number, 2)}) for number in (1, 2))
    common = set(first) & set(second)
    assert set(first) | set(second) == set(ITEMS)
    assert common == (set() if option == 'share' else set(ITEMS[:-11]))
    assert set(first) - common and set(second) - common


def test_of_the_cells_of_each_test_a_third_runs_and_at_least_one():
    kept = selected(cells=3)
    counts = {name: 0 for name in map(conftest._function_of, ITEMS)}
    for item in kept:
        counts[conftest._function_of(item)] += 1
    assert counts.pop('tests/test_grid.py::test_cells') == 9
    assert counts.pop('tests/test_slow.py::test_long') == 4
    assert set(counts.values()) == {1}
    # Of a grid with three columns, not one column.
    assert len({item.nodeid[-2] for item in kept if 'grid' in item.nodeid}) == 3


def test_of_the_cells_of_large_grids_another_third_runs_and_all_of_the_others():
    kept = set(selected(grids=3))
    grid = set(ITEMS[:27])
    assert len(kept & grid) == 9
    assert not kept & grid & set(selected(cells=3))
    assert kept >= set(ITEMS) - grid


def test_where_a_third_of_the_cells_run_no_test_does_that_needs_no_tensorflow():
    only_python = Item('tests/test_python.py::test_words', ('no_tensorflow',))
    assert only_python in selected(ITEMS + [only_python])
    assert only_python not in selected(ITEMS + [only_python], cells=3)


def test_each_of_two_workers_begins_with_slow_tests():
    kept = selected()
    half = (len(kept) + 1) // 2
    slow = [number for number, item in enumerate(kept) if item.markers]
    assert slow == [*range(6), *range(half, half + 5)]
