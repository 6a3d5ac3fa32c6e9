"""Policies and chains of them, tested without a TensorFlow graph."""

import pytest

from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.incident import Incident
from slimguard.incidents.policies import (
    BATCH,
    COMES_AGAIN,
    UNGUARDED,
    PolicyState,
    Raise,
    Rollback,
    Skip,
    Stop,
)
from slimguard.incidents.policy_language import fallbacks_of

RAISE = Raise()


def incident():
    return Incident(4, float('nan'), 'not finite: loss', ('loss',), 'hook', 0.0)


def decisions(on_nan, events, otherwise=RAISE):
    """What a chain decides on the bad steps ('x') of a sequence of steps ('.' is a good one)."""
    chain = FallbackChain(on_nan, otherwise)
    decided = []
    for event in events:
        if event == 'x':
            decided.append(chain.decide(incident()).action)
            if decided[-1] == 'rollback':
                chain.note_rollback()
        else:
            chain.step_was_good()
    return ' '.join(decided)


@pytest.mark.parametrize(
    'on_nan, events, decided',
    [
        # A string is a chain, also as the result of a callable. A rollback renews skip.
        ('skip:1, rollback:1, stop', 'xx.xx', 'skip rollback skip stop'),
        (lambda incident: 'skip:1,stop', 'xx', 'skip stop'),
        (['skip:1,rollback:1', Stop()], 'xx.xx', 'skip rollback skip stop'),
        ([Skip(1), lambda incident: ['stop']], 'xx', 'skip stop'),
        # Skip is used up by incidents in a row, and renewed by a good step.
        ([Skip(max_consecutive=2), Skip(1)], 'xx.xxx', 'skip skip skip skip raise'),
        ('skip', 'x' * 11, 'skip ' * 10 + 'raise'),
        ('rollback:2', 'x.x.x', 'rollback rollback raise'),
    ],
)
def test_in_a_chain_the_next_takes_over_and_after_the_last_comes_raise(on_nan, events, decided):
    assert decisions(on_nan, events) == decided


@pytest.mark.parametrize('on_nan', [None, lambda incident: None])
def test_without_a_policy_fail_on_nan_loss_says(on_nan):
    assert decisions(on_nan, 'x', otherwise=Raise()) == 'raise'
    assert decisions(on_nan, 'x', otherwise=Stop()) == 'stop'


def after(chain, events):
    """The last decision of a chain, after the earlier ones were carried out."""
    action = None
    for event in events:
        action = None
        if event == 'x':
            action = chain.decide(incident()).action
            if action == 'skip':
                chain.step_was_skipped()
            elif action == 'rollback':
                chain.note_rollback()
        else:
            chain.step_was_good()
    return action


def test_skip_has_a_budget_of_its_last_thousand_steps():
    chain = FallbackChain([Skip(5, max_ratio=0.2), 'stop'], RAISE)
    assert after(chain, '.x' * 200) == 'skip' and chain.why_not == ''
    assert after(chain, '.x') == 'stop'
    said = '200 of the 401 steps before were skipped, and max_ratio=0.2 allows no more'
    assert chain.why_not == "; 'skip:5' does not apply, since %s" % said
    # Of the last 1,000 steps a fifth were skipped; of the 401 steps above, a half.
    assert after(chain, '.' * 600 + 'x') == 'skip' and chain.why_not == ''
    assert after(chain, '.' * 1000 + '.x' * 200) == 'skip'
    assert after(chain, '.x') == 'stop'


def test_a_budget_counts_steps_and_not_a_share_of_the_first_few():
    assert after(FallbackChain(Skip(max_ratio=0.001), RAISE), 'x') == 'skip'
    assert after(FallbackChain(Skip(max_ratio=0.001), RAISE), 'x.x') == 'raise'
    assert after(FallbackChain(Skip(max_ratio=0.001), RAISE), 'x' + '.' * 999 + 'x') == 'skip'
    assert after(FallbackChain(Skip(max_ratio=0.001), RAISE), 'x' + '.' * 998 + 'x') == 'raise'
    assert after(FallbackChain(Skip(max_ratio=1), RAISE), 'x.' * 2000) is None


def test_a_rollback_begins_a_new_budget():
    chain = FallbackChain([Skip(max_ratio=0.003), Rollback(), 'stop'], RAISE)
    assert after(chain, '.x' * 4) == 'rollback'
    assert after(chain, '.x' * 3) == 'skip'
    assert after(chain, '.x') == 'rollback'


def test_a_chain_tells_once_how_many_were_skipped():
    chain = FallbackChain('skip', RAISE)
    assert chain.tell() == ''
    after(chain, '..x.x')
    assert chain.tell() == '2 of 5 batches were skipped'
    assert chain.tell() == ''
    chain.step_was_skipped(is_decided=False)
    assert chain.tell() == '3 of 6 batches were skipped'
    chain.step_was_skipped(why='log of 0')
    said = '4 of 6 batches were skipped; the last cause found: log of 0'
    assert chain.tell() == said
    chain.step_was_skipped()
    assert '5 of 6 batches were skipped; the last cause found: log of 0' in chain.tell()
    after(chain, 'x' * 11)  # ends in an error, whose message has the cause
    assert 'cause' not in chain.tell()


def test_a_ratio_is_a_share():
    for ratio, error in [(0, ValueError), (1.1, ValueError), ('x', TypeError)]:
        with pytest.raises(error, match='max_ratio must be .*above 0 and at most 1, not'):
            Skip(max_ratio=ratio)


def test_a_policy_that_is_used_up_says_so():
    chain = FallbackChain([Skip(2), Rollback(1)], RAISE)
    assert after(chain, 'xxx') == 'rollback'
    skipped = "; 'skip:2' does not apply, since 2 bad steps in a row came before this one, and "
    skipped += 'it allows 2'
    assert chain.why_not == skipped
    assert after(chain, 'xxx') == 'raise'
    gone_back = "; 'rollback:1' does not apply, since the training went back once already"
    assert chain.why_not == skipped + gone_back


def test_bad_batches_are_counted_against_the_limit_that_holds_for_them():
    state, skip = PolicyState(), Skip(2)
    for number in range(1, 101):
        state.note_incident(False, '', BATCH if number % 3 == 1 else '')  # the others: not examined
        assert skip.spent(state) == ' (bad batches in a row: %d, allowed: 100)' % number
    state.note_incident(False, '', BATCH)
    assert not skip.is_willing(state)
    why_not = skip.why_not(state)
    assert '100 bad batches in a row came before this one, and 100 are allowed' in why_not
    assert "'skip:200' allows more" in why_not
    assert Skip(200).is_willing(state)
    other = PolicyState()
    other.note_incident(False, '', '')
    assert skip.spent(other) == ' (bad steps in a row: 1, allowed: 2)'


def test_a_variable_that_was_bad_before_is_no_bad_batch():
    state, skip = PolicyState(), Skip(2)
    state.note_incident(False, '', BATCH)
    assert '(bad batches in a row: 1, allowed: 100)' in skip.spent(state)
    state.note_incident(False, '', UNGUARDED)
    assert skip.spent(state) == ' (bad steps in a row: 2, allowed: 2)'


@pytest.mark.parametrize(
    'on_nan', ['raise', 'stop', 'skip', 'skip:5', 'rollback', 'rollback:4', 'rollback:3x0.1']
)
def test_a_policy_is_named_as_users_write_it(on_nan):
    assert str(*FallbackChain(on_nan, RAISE).fallbacks) == on_nan


def test_who_may_give_way_comes_before_others():
    class Seldom(Stop):
        def is_willing(self, state):
            return False

    assert decisions([Seldom(), 'skip'], 'x') == 'skip'


def test_skip_leaves_lost_weights_to_the_next():
    chain = FallbackChain(['skip', 'rollback'], RAISE)
    lost = Incident(4, None, 'not finite: w', ('w',), 'hook', 0.0, state_lost=True)
    assert chain.decide(lost).action == 'rollback'


def test_a_callable_decides_with_the_incident():
    seen = []

    def on_nan(incident):
        seen.append(incident.step)
        return 'skip' if len(seen) < 3 else Stop()

    assert decisions(on_nan, 'xxx') == 'skip skip stop'
    assert seen == [4, 4, 4]


def test_a_callable_that_returns_nonsense_is_named():
    with pytest.raises(TypeError, match='on_nan must be the name of a policy.* not 5'):
        decisions(lambda incident: 5, 'x')
    with pytest.raises(TypeError, match='callable .* returned'):
        decisions(lambda incident: lambda incident: None, 'x')


def test_what_is_ruined_is_not_skipped():
    chain = FallbackChain([Skip(3), Rollback()], Raise())
    assert isinstance(chain.decide(incident()), Skip) and chain.why_not == ''
    assert isinstance(chain.decide(incident(), 'the weights are ruined'), Rollback)
    assert chain.why_not == "; 'skip:3' does not apply, since the weights are ruined"
    assert isinstance(chain.decide(incident()), Skip)
    # A callable asks for no rollback, although it may return one.
    chain = FallbackChain(lambda incident: 'skip', RAISE)
    assert isinstance(chain.decide(incident(), 'the weights are ruined'), Skip)


def by_cause(on_nan, cause, count=1, **known):
    """A chain's decision on the last of `count` incidents of one cause in a row, and `why_not`."""
    chain = FallbackChain(on_nan, RAISE)
    bad = Incident(4, None, 'not finite: w', ('w',), 'hook', 0.0, **known)
    for _ in range(count):
        action = chain.decide(bad, cause=cause).action
        if action == 'skip':
            chain.step_was_skipped()
    return action, chain.why_not


ORDERS = ['skip:3,rollback:3x0.5,raise', 'rollback:3x0.5,skip:3']


@pytest.mark.parametrize('on_nan', ORDERS)
def test_a_bad_batch_is_skipped_whatever_the_order(on_nan):
    action, why_not = by_cause(on_nan, BATCH, count=100)
    assert action == 'skip'
    not_applied = "'rollback:3x0.5' does not apply, since the batch is at fault"
    assert (not_applied in why_not) == on_nan.startswith('rollback')
    # 101 bad batches in a row are no chance, so the chain decides as without a known cause.
    assert by_cause(on_nan, BATCH, count=101)[0] == 'rollback'
    assert by_cause(on_nan, '', 1 if on_nan.startswith('rollback') else 4)[0] == 'rollback'


def test_a_budget_decides_when_bad_batches_are_too_many_and_a_rollback_is_not_applied():
    chain = [Skip(3, max_ratio=0.01), Rollback(), 'stop']
    assert by_cause(chain, BATCH, count=10) == ('skip', '')
    action, why_not = by_cause(chain, BATCH, count=11)
    assert action == 'stop'
    assert why_not.endswith(
        "max_ratio=0.01 allows no more; 'rollback' does not apply, since the batch is at fault and "
        'not the weights'
    )


def test_who_asks_for_nothing_but_a_rollback_has_it():
    assert by_cause('rollback', BATCH) == ('rollback', '')


def test_weights_that_are_lost_or_ruined_are_not_the_batchs():
    assert by_cause('skip,rollback', BATCH, state_lost=True)[0] == 'rollback'
    chain = FallbackChain('skip,rollback', RAISE)
    assert chain.decide(incident(), 'the weights are ruined', BATCH).action == 'rollback'


@pytest.mark.parametrize('on_nan', [*ORDERS, lambda incident: 'skip', 'rollback'])
def test_what_comes_again_whatever_is_done_ends_the_training_at_once(on_nan):
    action, why_not = by_cause(on_nan, COMES_AGAIN)
    assert action == 'raise' and 'would fail in the same way' in why_not
    assert by_cause([on_nan, 'stop'] if callable(on_nan) else 'skip,stop', COMES_AGAIN)[0] == 'stop'


def test_what_is_foreseen_changes_nothing_and_asks_no_callable():
    chain = FallbackChain('skip:1,rollback', RAISE)
    for expected in ('skip', 'rollback'):
        assert [chain.foresee(incident()).action for _ in range(3)] == [expected] * 3
        assert chain.decide(incident()).action == expected
    assert FallbackChain(lambda incident: 1 / 0, RAISE).foresee(incident()) is None


def test_a_rollback_that_is_decided_and_fails_is_not_counted():
    chain = FallbackChain('rollback:1', RAISE)
    for _ in range(2):
        assert chain.decide(incident()).action == 'rollback' and chain.tell() == ''
    chain.note_rollback()
    assert chain.tell() == 'the training went back to an earlier state 1 time'
    assert chain.decide(incident()).action == 'raise'


def test_policies_are_values():
    assert Skip(3) == Skip(max_consecutive=3) != Skip(4)
    assert Stop() == Stop() != Raise()
    assert len({Skip(3), Skip(3), Stop()}) == 2
    assert repr(Skip(3)) == 'Skip(max_consecutive=3, max_ratio=None)'
    assert Rollback(3, learning_rate=0.5) != Rollback(3) == Rollback()


def test_what_is_no_policy_is_named():
    for on_nan, error, words in [
        ('ignore', ValueError, "on_nan: unknown policy 'ignore'; expected raise, stop, skip or ro"),
        ([], ValueError, 'on_nan: the list is empty'),
        (['skip', 'never'], ValueError, "'never'"),
        (
            'skip:5,never',
            ValueError,
            "on_nan: unknown policy 'never' in 'skip:5,never'; expected raise",
        ),
        ('skip:0', ValueError, "on_nan: 'skip:0': expected a number of at least 1"),
        (['stop', 'rollback:3x2'], ValueError, "on_nan: 'rollback:3x2': expected what to mult"),
        ('raise,skip', ValueError, "on_nan: 'raise' before 'skip', which never acts then"),
        (['skip', Stop(), Rollback()], ValueError, "'stop' before 'rollback'.*put it last"),
        (
            'skp:3',
            ValueError,
            r"'skp' in 'skp:3' \(did you mean 'skip'\?\); expect",
        ),
        ('Raise', ValueError, r"did you mean 'raise'\?"),
        (3, TypeError, 'not 3'),
        (Skip, TypeError, r'pass Skip\(\)'),
    ]:
        with pytest.raises(error, match=words):
            fallbacks_of(on_nan)


def test_a_count_is_a_positive_int():
    for policy in (Skip, Rollback):
        with pytest.raises(ValueError, match='at least 1, not 0'):
            policy(0)
        for count in ('3', 2.0, True, None):
            with pytest.raises(TypeError, match='must be an int'):
                policy(count)


def test_a_learning_rate_is_a_share():
    wrong = [(0, ValueError), (1.5, ValueError), (float('nan'), ValueError)]
    for learning_rate, error in [*wrong, ('0.5', TypeError), (True, TypeError)]:
        with pytest.raises(error, match='learning_rate must be .*above 0 and at most 1, not'):
            Rollback(learning_rate=learning_rate)


def test_a_chain_knows_by_what_it_lowers_the_learning_rate():
    assert FallbackChain(['skip', Rollback()], RAISE).learning_rate is None
    chain = FallbackChain(['skip', Rollback(1), Rollback(learning_rate=0.3), 'raise'], RAISE)
    assert chain.learning_rate == 0.3


def test_on_rollback_is_callable():
    with pytest.raises(TypeError, match='on_rollback must be callable, not 0.5'):
        Rollback(on_rollback=0.5)
