"""Values far above those of the last good steps, and the arguments of `Spike`."""

import math
import statistics

import numpy as np
import pytest

import slimguard
from slimguard.incidents.spike import Largest, Level, as_spike


def level_of(values, window=100, warmup=20):
    level = Level(window, warmup)
    for value in values:
        level.add(value)
    return level


class TestLevel:
    def test_there_is_no_limit_before_the_first_step_for_what_is_not_looked_at_or_is_zero(self):
        assert level_of([]).limit(10) == math.inf
        assert level_of([1.0] * 50).limit(None) == math.inf
        assert level_of([0.0] * 100).limit(10) == math.inf

    def test_the_median_is_that_of_the_last_steps(self):
        values = np.random.RandomState(0).lognormal(sigma=3, size=300).round()  # some are equal
        level = Level(window=7, warmup=1)
        for count, value in enumerate(values, start=1):
            level.add(value)
            assert level.median == statistics.median(values[max(0, count - 7) : count])

    def test_with_few_steps_the_multiple_is_larger(self):
        assert level_of([3.0]).limit(10) == 20 * 10 * 3
        assert level_of([3.0] * 5).limit(10) == 4 * 10 * 3
        assert level_of([3.0] * 20).limit(10) == level_of([3.0] * 50).limit(10) == 10 * 3

    def test_an_explosion_of_the_first_steps_is_seen(self):
        # The gradient norms of a detector that explodes.
        norms = [186, 21, 810, 38, 1.3e4, 1.1e7, 4e16]
        level = Level(100, 20)
        passed = []
        for norm in norms:
            if norm <= level.limit(100):
                passed.append(norm)
                level.add(norm)
        assert passed == norms[:5]

    def test_what_the_typical_step_once_had_is_no_spike(self):
        level = level_of([2.0] * 40 + [1e-6] * 200)
        assert level.median == 1e-6
        assert level.limit(10) == 2.0

    def test_the_first_steps_do_not_say_what_is_typical(self):
        level = level_of([1e9, 1e9] + [1.0] * 100)
        assert level.limit(10) == 10

    def test_signs_do_not_matter(self):
        assert level_of([-5.0, 5.0, -5.0, 4.0] * 10).limit(10) == 50

    def test_where_good_steps_differ_much_the_limit_is_higher(self):
        random = np.random.RandomState(0)
        level = level_of([1.0] * 20 + list(random.lognormal(-3, 1.5, size=300)))
        assert level.limit(10) == 10  # ten times the largest median
        narrow = level_of([1.0] * 20 + list(random.lognormal(-3, 0.1, size=300)))
        assert narrow.limit(10) == 1  # the largest median
        little = level_of(random.lognormal(0, 0.5, size=300))
        assert 10 * little.median < little.limit(10) < 13

    def test_what_is_not_finite_tells_nothing(self):
        assert level_of([math.nan, math.inf, 2.0]).median == 2.0

    def test_it_begins_anew(self):
        level = level_of([9.0] * 30, window=20, warmup=5)
        level.clear()
        assert level.limit(10) == math.inf and len(level) == 0
        level.add(1.0)
        assert level.median == 1.0


class TestWhatIsFarBeyondAllBefore:
    def largest_of(self, values):
        largest = Largest()
        return [largest.add(value) for value in values]

    def test_is_ten_thousand_times_the_largest(self):
        assert self.largest_of([2.0, 1.0] * 20 + [19999.0]) == [0.0] * 41
        assert self.largest_of([2.0, 1.0] * 20 + [30000.0, 1.0, 1e9])[-3:] == [
            15000,
            0.0,
            1e9 / 3e4,
        ]
        assert self.largest_of([2.0, math.inf])[-1] == math.inf

    def test_is_not_what_comes_after_a_small_beginning_or_after_nothing(self):
        assert self.largest_of([1e-9, 1.0, 1e3]) == [0.0] * 3
        assert self.largest_of([0.0] * 30 + [1.0]) == [0.0] * 31
        assert self.largest_of([1e-10] * 30 + [1.0]) == [0.0] * 31
        assert self.largest_of([math.nan] * 30 + [1e9]) == [0.0] * 31


class TestWhatUsersSay:
    def test_the_defaults(self):
        spike = slimguard.Spike()
        said = (spike.loss, spike.gradient_norm, spike.window, spike.warmup)
        assert said == (10.0, 100.0, 100, 20)
        assert as_spike(True) == as_spike('default') == spike
        assert as_spike(None) is None and as_spike(False) is None

    def test_a_text(self):
        assert as_spike('loss=5, gradient-norm=none,window=50') == slimguard.Spike(5.0, None, 50)

    @pytest.mark.parametrize(
        'arguments, said',
        [
            (dict(loss=1), 'loss of a Spike .* not 1'),
            (dict(gradient_norm=math.inf), 'gradient_norm of a Spike .* not inf'),
            (dict(gradient_norm=True), 'gradient_norm of a Spike .* not True'),
            (dict(loss=None, gradient_norm=None), 'looks at something'),
            (dict(window=1), 'window of a Spike .* not 1'),
            (dict(warmup=0), 'warmup of a Spike .* not 0'),
            (dict(window=10, warmup=11), 'from 1 to its window of 10, not 11'),
        ],
    )
    def test_a_bad_spike(self, arguments, said):
        with pytest.raises(ValueError, match=said):
            slimguard.Spike(**arguments)

    @pytest.mark.parametrize(
        'text, said',
        [
            ('', 'expected something like'),
            ('loss=10,loss=10', 'at most once'),
            ('loss=ten', "loss must be a number, not 'ten'"),
            ('window=1.5', "window must be a number, not '1.5'"),
            ('loss=0.5', 'loss of a Spike.*finite number above 1.*not 0.5'),
        ],
    )
    def test_a_bad_text_is_told_in_the_users_words(self, text, said):
        with pytest.raises(ValueError, match='--spike.*' + said):
            as_spike(text, '--spike')

    def test_anything_else(self):
        with pytest.raises(ValueError, match='spike must be a slimguard.Spike, .* not 10'):
            as_spike(10)
