"""The samples of a batch, as images and in numbers."""

import numpy as np
import pytest

from slimguard.report import samples


@pytest.mark.parametrize(
    'shape, dtype, seen_as',
    [
        ([6, 28, 28, 1], np.float32, (6, 28, 28, 1)),
        ([6, 28, 20, 3], np.uint8, (6, 28, 20, 3)),
        ([6, 4, 28, 20], np.float16, (6, 28, 20, 4)),
        ([6, 28, 28, 2], np.float32, None),
        ([6, 28, 28], np.float32, None),
        ([6, 28, 28, 3], object, None),
    ],
)
def test_what_looks_like_images(shape, dtype, seen_as):
    found = samples.as_images(np.zeros(shape, dtype))
    assert (found if found is None else found.shape) == seen_as


def batch(rows=4, side=8, channels=1):
    return np.random.RandomState(1).uniform(0, 1, [rows, side, side, channels]).astype(np.float32)


def test_bad_pixels_are_marked_and_bad_samples_are_always_shown():
    value = batch(rows=40)
    value[33, 2, 5, 0], value[7, 0, 0, 0] = np.nan, -np.inf
    (sheet,) = samples.sheets({'x:0': value}, most=16)
    assert (sheet.black, sheet.white, sheet.rows) == (0.0, 1.0, 40)
    assert [s.row for s in sheet.samples] == [*range(15), 33]
    bad = {s.row: (s.bad, s.bad_pixels) for s in sheet.samples if s.bad}
    assert bad == {33: (1, [(2, 5)]), 7: (1, [(0, 0)])}
    assert tuple(sheet.samples[-1].pixels[2, 5]) == samples.BAD
    assert np.all(
        np.delete(sheet.samples[-1].pixels.reshape(-1, 3), 21, 0) != samples.BAD[:2] + (0,)
    )


def test_a_sample_that_fails_later_on_is_a_suspect_only_if_the_batch_is_its_own():
    value = {'x:0': batch(rows=6), 'other:0': batch(rows=5)}
    found = samples.sheets(value, {'x:0': [2]})
    assert [[s.row for s in sheet.samples if s.suspect] for sheet in found] == [[2], []]


def lines_of(*args):
    return {it.name: it.lines for it in samples.in_numbers(*args)}


def test_the_rows_of_what_is_no_image_are_numbers_the_bad_ones_beside_a_good_one():
    value = np.tile(np.arange(20, dtype=np.float32), [8, 1])
    labels = np.arange(8, dtype=np.int64)
    drawn = {'x:0': value, 'y:0': labels, 'name:0': np.array(['a'] * 8), 'image:0': batch(rows=8)}
    # The largest array comes first, unless another is not finite.
    found = samples.in_numbers(dict(reversed(list(drawn.items()))))
    outlines = 'float32[8, 20], 2 of 8 rows', 'int64[8], 2 of 8 rows'
    assert [(it.name, it.outline) for it in found] == list(zip(('x:0', 'y:0'), outlines))
    assert not any(it.is_at_fault for it in found)
    bad = {'x:0': value, 'z:0': np.float32(np.nan), 'w:0': np.ones([8])}
    found = samples.in_numbers(bad, suspects=['w:0'])
    assert [(it.name, it.is_at_fault) for it in found] == [
        ('z:0', True),
        ('w:0', True),
        ('x:0', False),
    ]
    assert [it.lines for it in found[:2]] == ['nan', 'all 8 numbers are 1']
    assert lines_of(drawn)['y:0'] == 'row 0: 0\nrow 1: 1'
    value[5, 3], value[5, 19] = np.nan, np.inf
    numbers = lines_of(drawn, {'x:0': [0], 'y:0': [0]})
    bad = 'row 5, bad: 0 1 2 nan 4 5 6 7 8 9 10 11 12 13 14 15 \N{HORIZONTAL ELLIPSIS}'
    lines = numbers['x:0'].split('\n')
    assert [line[:10] for line in lines] == ['row 0, bad', bad[:10], 'row 1, goo']
    assert lines[1] == bad
    assert numbers['y:0'] == 'row 0, bad: 0\nrow 1, good: 1'


def test_a_number_at_fault_is_in_brackets():
    drawn = {'x:0': np.arange(6, dtype=np.float32).reshape(3, 2), 'y:0': np.arange(3)}
    numbers = lines_of(drawn, {'x:0': [1]}, (), {'x:0': [(1, 1)], 'y:0': [(0,)]})
    assert numbers['x:0'] == 'row 1, bad: 2 [3]\nrow 0, good: 0 1'
    assert numbers['y:0'] == 'row 0: [0]\nrow 1: 1'


def test_it_speaks_of_bad_samples_only_if_one_is_known():
    value = batch(rows=40)
    (sheet,) = samples.sheets({'x:0': value})
    assert samples.caption(sheet).endswith('; 16 of the 40 samples are shown.')
    (sheet,) = samples.sheets({'x:0': value}, {'x:0': [33]})
    assert samples.caption(sheet).endswith(
        '; 16 of the 40 samples are shown, bad ones before others.'
    )


def test_a_large_sample_is_shrunk_and_its_bad_pixel_is_not_lost():
    value = batch(rows=2, side=500, channels=3)
    value[1, 499, 3, 2] = np.nan
    (sheet,) = samples.sheets({'x:0': value})
    assert sheet.samples[1].pixels.shape == (125, 125, 3)
    assert sheet.samples[1].bad_pixels == [(124, 0)]


@pytest.mark.parametrize(
    'value, ends',
    [
        (batch() * 255, (0.0, 255.0)),
        (batch() * 2 - 1, (-1.0, 1.0)),
        ((batch() * 255).astype(np.uint8), (0.0, 255.0)),
        (np.full([4, 8, 8, 1], np.nan), (0.0, 1.0)),
        (np.full([4, 8, 8, 1], 7, np.int64), (6.5, 7.5)),
        (np.full([4, 8, 8, 1], -1e308), (-1.001e308, -0.999e308)),
    ],
)
def test_black_and_white_fit_the_batch(value, ends):
    (sheet,) = samples.sheets({'x:0': value})
    assert (sheet.black, sheet.white) == pytest.approx(ends)


def test_all_arrays_share_the_samples_that_are_shown_and_bad_ones_come_first():
    value = batch(rows=40)
    value[33] = np.nan
    for most, rows in ((4, [0, 33]), (1, [33])):
        found = samples.sheets({'a:0': value, 'b:0': value}, most=most)
        assert [[it.row for it in sheet.samples] for sheet in found] == [rows, rows]


def test_a_batch_of_very_many_samples_is_counted_as_a_whole():
    value = np.zeros([200000, 4, 4, 1], np.float32)
    value[[7, 199999], 1, 2] = np.nan
    (sheet,) = samples.sheets({'x:0': value})
    assert [(it.row, it.bad) for it in sheet.samples if it.bad] == [(7, 1), (199999, 1)]


def test_one_wild_sample_leaves_the_others_visible():
    value = batch()
    value[2] = 1e25
    (sheet,) = samples.sheets({'x:0': value})
    assert (sheet.black, sheet.white) == (0.0, 1.0)


def test_the_array_at_fault_comes_before_innocent_ones():
    good, bad = np.zeros([2, 8, 8, 1]), np.zeros([2, 8, 8, 1])
    bad[1, 2, 2] = np.nan
    assert [it.name for it in samples.sheets({'a': good, 'b': bad})] == ['b', 'a']
    assert [it.name for it in samples.sheets({'a': good, 'b': good}, {'b': [0]})] == ['b', 'a']
