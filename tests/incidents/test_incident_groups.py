"""Incidents of one cause, together."""

from slimguard.incidents.incident import Incident
from slimguard.incidents.incident_groups import grouped


def incident(step, reason='not finite: loss', action='skip', **known):
    return Incident(step, 0.5, reason, (), 'hook', 1000.0, action=action, **known)


def test_those_of_one_cause_are_together_whatever_it_made_bad():
    where = ('in row 3', 'in rows 1, 5', 'in 14 of 16 rows')
    causes = [*('bad data: 2 NaN, %s\n  x' % each for each in where), 'log of 0']
    incidents = [incident(n, 'not finite: %d' % n, diagnosis=it) for n, it in enumerate(causes)]
    assert [group.count for group in grouped(incidents)] == [3, 1]


def test_spikes_are_of_one_kind_whatever_their_multiples_of_the_median():
    told = 'in the forward pass: the loss %s is %s times the median 8.9, and everything is finite'
    causes = [told % ('50346', '5660'), told % ('1e+12', '1.2e+11'), told % ('-90.5', '10.2')]
    incidents = [incident(n, diagnosis=it) for n, it in enumerate(causes)]
    assert [group.count for group in grouped(incidents)] == [3]


def test_one_cause_in_two_lines_of_the_user_is_two_and_an_overflow_is_one_wherever_it_shows():
    told = 'in the forward pass: %s\n  Log:0 (Log)\n  /home/me/train.py:%d%s'
    for cause, more, count in [
        ('log of 0', ', in f: tf.log(x)', 2),
        ('log of 0', '', 2),
        ('overflow', '', 1),
    ]:
        both = [incident(line, diagnosis=told % (cause, line, more)) for line in (7, 9)]
        assert len(grouped(both)) == count
        assert len(grouped([both[0], both[0]])) == 1


def test_an_explosion_is_one_whatever_overflowed_in_it():
    grown = 'the loss went from 0.9 at step 3 to 1e+17 at step 9; then %s overflowed'
    large = 'in the forward pass: overflow of float32. The weights are as large as 9e+9 (%s)'
    for told in (grown, large):
        both = [incident(n, diagnosis=told % op) for n, op in enumerate(['Square', 'w/MatMul'])]
        assert len(grouped(both)) == 1
    told = (
        'in the forward pass: overflow of exp: its input is as large as 99, and float32 ends at 3',
        'in the backward pass: overflow of float32: MatMul of numbers as large as 9e+30, and '
        'float32 ends at 3, in row 2. The weights are as large as 9e+9 (w)',
    )
    row = '; x:0 is as large as 1e+30, in row 2, and 3 at most in the other rows'
    incidents = [incident(n, diagnosis=it) for n, it in enumerate([*told, told[0] + row])]
    assert [group.count for group in grouped(incidents)] == [2, 1]  # the data are another cause


def test_without_a_cause_those_of_one_reason_are_together_in_the_order_of_the_first():
    incidents = [incident(3), incident(4, 'not finite: w'), incident(9), incident(7, action=None)]
    incidents.append(incident(8, action='raise'))
    loss, weights = grouped(incidents)
    assert loss.first is incidents[0] and weights.first is incidents[1]
    assert (loss.count, loss.first_step, loss.last_step) == (4, 3, 9)
    assert loss.actions == {'skip': 2, '': 1, 'raise': 1}
    assert (weights.count, weights.first_step, weights.last_step) == (1, 4, 4)


def test_what_was_not_examined_is_counted_where_one_cause_has_its_symptom():
    log, data = 'in the forward pass: log of 0', 'in the input: bad data: 1 NaN'
    seen, unseen = 'not finite: loss', 'not finite: loss; cause not looked for: no time'
    known = [incident(1, seen, diagnosis=data), incident(2, seen, diagnosis=log)]
    left_out = [incident(3, unseen), incident(4, unseen)]
    of_data, of_log = grouped(known + left_out)
    assert (of_data.count, of_data.not_examined) == (1, 0)
    assert (of_log.count, of_log.not_examined, of_log.first) == (3, 2, known[1])
    other = incident(5, seen, diagnosis='in the forward pass: division by 0')
    counts = [(group.count, group.not_examined) for group in grouped([*known, *left_out, other])]
    assert counts == [(1, 0), (1, 0), (2, 0), (1, 0)]  # two causes share the symptom


def test_numbers_do_not_tell_reasons_apart_and_names_do():
    for reason, other, count in [
        (
            'gradient norm 3.1e9 is 24 times the median',
            'gradient norm 7 is 1e+2 times the median',
            1,
        ),
        ('above max_loss: loss (12.5)', 'above max_loss: loss (-3)', 1),
        ('loss nan, 3 of 4', 'loss inf, 2 of 9', 1),
        ('not finite: conv/1/weights', 'not finite: conv/2/weights', 2),
        ('not finite: gradient of conv_1', 'not finite: gradient of conv_2', 2),
        ('not finite: Log:0', 'not finite: Log:1', 2),
    ]:
        assert len(grouped([incident(1, reason), incident(2, other)])) == count


def test_steps_that_nobody_knows_are_none():
    (group,) = grouped([incident(None), incident(None)])
    assert (group.first_step, group.last_step) == (None, None)
    assert grouped([]) == []
