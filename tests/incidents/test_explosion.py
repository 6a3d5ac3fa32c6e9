"""Which losses and norms of the last steps count as an explosion, and which do not."""

import numpy as np
import pytest

from slimguard.incidents.history import explosion_in
from tests.report.test_last_steps import NAN, history_of


def jumped(jump=4.0, after=3, loss=50.0, before=100, back=0):
    """A history whose rate jumps at step `before`; `after` steps later two losses are large."""
    count = before + after + 2 + back
    rates, losses = np.full(count, 0.02), np.linspace(2, 1, count)
    rates[before:], losses[before + after : before + after + 2] = jump, loss
    return history_of(np.ones([count, 2]), loss=losses, rates=rates)


def test_the_cause_of_an_explosion_is_the_jump_of_the_rate_before_it():
    said = 'the learning rate went from 0.02 to 4 at step 100; the loss followed '
    assert explosion_in(jumped()) == said + '3 steps later'
    assert explosion_in(jumped(after=1)) == said + '1 step later'
    assert explosion_in(jumped(after=0)) == said + 'in the same step'
    assert (
        explosion_in(dict(jumped(), step=[None] * 105)).count(' (4 steps before the last); ') == 1
    )


@pytest.mark.parametrize(
    'written, said', [(True, 'from 0.02 to 4 at step 100; the loss of the next step'), (False, '')]
)
def test_a_jump_is_the_cause_if_no_loss_after_it_is_finite(written, said):
    rates, losses = np.full(103, 0.02), np.ones(103)
    rates[100:], losses[101:] = 4.0, NAN
    good = np.append(np.ones(100), [written, 0, 0])
    told = explosion_in(history_of(np.ones([103, 1]), loss=losses, rates=rates, good=good))
    assert said in told and bool(told) == written


@pytest.mark.parametrize(
    'how',
    [{'jump': 0.03}, {'loss': 5.0}, {'loss': NAN}, {'after': 60}, {'before': 5}, {'back': 9}],
    ids=str,
)
def test_a_cause_that_cannot_be_seen_is_not_named(how):
    assert explosion_in(jumped(**how)) == ''
    assert explosion_in(dict(jumped(), learning_rate=[None] * 105)) == ''
    assert explosion_in(None) == ''


USUAL = np.random.RandomState(0).lognormal(0, 0.3, 100).tolist()


def grown(losses, norms=1.0, **kwargs):
    """The sentence on these losses; the last one is the bad step's."""
    good = np.append(np.ones(len(losses) - 1), 0)
    return explosion_in(
        history_of(np.ones([len(losses), 1]) * norms, loss=losses, good=good, **kwargs)
    )


@pytest.mark.parametrize(
    'losses, said',
    [
        # From the last step at which it was low to the last that was written.
        (
            [*USUAL, 0.6, 1e3, 1e8, 1e17, NAN],
            'the loss went from 0.6 at step 100 to 1e+17 at step 103',
        ),
        # It explodes from the beginning.
        (
            [1.5, 1e2, 1e7, 1e20, 1e35, NAN],
            'the loss went from 1.5 at step 0 to 1e+35 at step 4',
        ),
        # It explodes in one step.
        ([*USUAL, 3.0, 1e17, NAN], 'the loss went from 3 at step 100 to 1e+17 at step 101'),
        ([-1.0, -1e9, NAN], 'the loss went from -1 at step 0 to -1e+09 at step 1'),
    ],
)
def test_what_grew_far_beyond_all_that_was_usual_is_told(losses, said):
    assert grown(losses) == said


@pytest.mark.parametrize(
    'losses',
    [
        [*USUAL, 1.0, 1e17],  # only the bad step's own loss: its batch may be at fault
        [*USUAL, 1e4, 1e4, 1.0, NAN],  # it has become low again
        [*USUAL, 10.0, 50.0, NAN],
        [1e-3, 0.5, NAN],  # the first steps of a training
        [*np.linspace(1e4, 1e-4, 99), NAN],
        [*np.tile([1e-6, 1e-6, 1e-6, 1e-2], 25), NAN],  # near 0, with some hard batches
        [NAN],
    ],
)
def test_what_did_not_is_not(losses):
    assert grown(losses) == ''


def test_the_norm_of_the_gradients_grows_alike_and_a_return_ends_what_was_before_it():
    norms = np.append(np.ones(50), [1e4, 1e9, NAN])[:, None]
    said = 'the gradient norm went from 1 at step 49 to 1e+09 at step 51'
    assert grown(np.ones(53), norms) == said
    steps = [*range(1, 51), *range(41, 44)]
    losses = [*np.ones(48), 1e5, 1e9, 1.0, 1.0, NAN]
    assert grown(losses, step=steps) == ''
    said = 'the loss went from 1 at step 40 to 1e+07 at step 41'
    assert grown([*losses[:-2], 1e7, NAN], step=steps) == said


def test_the_global_step_of_a_step_is_that_at_which_it_began():
    """A held step, or one that only accumulates gradients, leaves the global step as it is."""
    norms = np.ones([6, 1])
    written = dict(step=[1, 2, 2, 3, 3, 4], good=[1, 1, 0, 1, 1, 1])
    assert history_of(norms, **written)['step'] == [0, 1, 2, 2, 3, 3]
