"""What a report opens with, the kinds of incidents, and what is said of each."""

import dataclasses

import numpy as np
import pytest

from slimguard.incidents.incident import Incident
from slimguard.incidents.incident_groups import without_rows
from slimguard.report import cards, page, report_data, samples
from slimguard.report.last_steps import last_steps_of
from slimguard.report.loss_history import curve_of
from tests.report.pages import Seen, line, record, rows_of, see
from tests.report.test_last_steps import history_of

NAN = 'not finite: loss total_loss'


def data_of(*said, bundles=(), diagnosis='', notes=()):
    """A report of incidents (step, action, reason, bundle), some of them with a bundle."""
    there = {it.opened.name: it for it in bundles}
    incidents = []
    for number, each in enumerate(said, 1):
        told = dict(zip(('step', 'action', 'reason', 'bundle'), each), diagnosis=diagnosis)
        incident = Incident.from_dict(told)
        kept = there.pop(cards.bundle_name(incident), None)
        incidents.append(cards.incident_of(incident, number, kept and kept.opened))
    return report_data.ReportData('x', '', None, incidents, list(there.values()), list(notes))


def bundle_of(name, step=1, text='in the forward pass: it was', rows=(2,)):
    incident = Incident.from_dict({'step': step, 'reason': 'of the bundle'})
    return cards.incident_of(incident, opened=cards.Opened(name, text, rows))


def first_of(*said, **kwargs):
    kind = report_data.kinds_of(data_of(*said, **kwargs))[0]
    return kind.said, kind.first.heading


@pytest.mark.parametrize('end', ['raise', 'stop', 'error'])
def test_it_opens_with_what_ended_the_training(end):
    said = [(1, 'skip', NAN), (2, 'rollback', NAN), (3, end, 'loss 7 is above max_loss: x')]
    assert first_of(*said) == (
        'The cause was not looked for. This incident ended the training.',
        'Incident 3, step 3',
    )
    assert first_of(*said, (4, 'skip', NAN)) == (
        'The cause was not looked for. This incident ended a run; another run followed.',
        'Incident 3, step 3',
    )


def test_or_with_the_first_of_the_kind_of_most_incidents():
    said = [(1, 'skip', 'other'), (2, 'skip', NAN), (3, 'rollback', NAN)]
    assert first_of(*said) == (
        '2 incidents are of this kind, at steps 2 and 3: 1 rolled back, 1 skipped. '
        'The cause was not looked for. Below is the first.',
        'Incident 2, step 2',
    )
    assert first_of((5, 'skip', NAN)) == (
        'The cause was not looked for.',
        'Incident 1, step 5',
    )


def test_incidents_that_were_examined_come_ahead_of_more_that_were_not():
    data = data_of((1, 'skip', 'examined'), (2, 'skip', NAN), (3, 'skip', NAN))
    found = dataclasses.replace(data.incidents[0], diagnosis='in the forward pass: log of 0')
    data.incidents[0] = found
    first, second = report_data.kinds_of(data)
    assert (first.first.step, second.said[:11]) == (1, '2 incidents')


def test_incidents_alike_are_one_card_and_a_line_for_each_other_one():
    said = [(n, 'skip', 'loss %d is above' % n, '/x/step-%d' % n) for n in range(1, 9)]
    bundles = [bundle_of('step-6'), bundle_of('step-7')]
    diagnosis = 'in the forward pass: it was'
    data = data_of(*said, bundles=bundles, diagnosis=diagnosis)
    (kind,) = report_data.kinds_of(data)
    assert kind.first.headline == 'In the forward pass: it was.'
    assert kind.first.step == 6
    assert kind.said == (
        'All 8 incidents are of this kind, at steps 1 to 8. '
        'Below is incident 6, the first with a bundle.'
    )
    assert [it.step for it in kind.alike] == [7]
    assert page.render(data).count('What to do') == 1


def test_the_card_is_of_the_first_with_ten_steps_of_history():
    said = [(n, 'skip', NAN, 'step-%d' % n) for n in range(1, 5)]
    bundles = []
    for n, length in enumerate([2, 9, 10, 200], 1):
        it = bundle_of('step-%d' % n, n)
        steps = last_steps_of(history_of(np.ones([length, 2]), loss=np.ones(length)))
        bundles.append(dataclasses.replace(it, opened=it.opened._replace(steps=steps)))
    why = ', the first with a history of 10 steps.'
    assert first_of(*said, bundles=bundles)[0].endswith(' Below is incident 3' + why)
    assert first_of(*said[:2], bundles=bundles[:2])[0].endswith(' Below is the first.')
    assert first_of(bundles=bundles)[0].endswith(' Below is step 3' + why)
    ended = [(4, 'raise', *each[2:]) if each[0] == 4 else each for each in said]
    assert first_of(*ended, bundles=bundles)[1] == 'Incident 4, step 4'
    data = data_of(*said[:1], (2, 'skip', NAN), bundles=bundles[:1])
    # Without a curve there is no section about the loss, and the note is at the foot.
    shown = page.render(data._replace(curve_note='No curve.'))
    assert '>Loss</h2>' not in shown and 'No curve.' in shown.partition('<footer>')[2]
    assert report_data.kinds_of(data)[0].said.startswith('Both incidents are of this kind, ')


def test_what_a_policy_says_is_of_the_action_and_a_limit_needs_no_phase():
    limit = 'the loss 3.6e+15 is 5.4e+15 times the median 0.7, and everything is finite'
    multiples = 'loss 3.6e+15 is 5.4e+15 times the median; gradient norm 9 is 3 times the median'
    policy = "'skip:5' does not apply, since it is late; the first loss was 1"
    said = 1, 'raise', '%s; %s' % (multiples, policy)
    (it,) = data_of(said, diagnosis='in the forward pass: ' + limit).incidents
    facts = {fact.name: fact.words for fact in it.facts}
    assert it.headline == 'T%s.' % limit[1:]
    assert facts['Symptom'] == multiples
    assert facts['Action'] == 'Raised an error; the update was not applied; ' + policy
    (it,) = data_of(said).incidents  # its headline has the reason
    assert it.headline.endswith(policy) and policy not in it.facts[0].words


def test_incidents_that_were_not_examined_are_told_of_after_their_number():
    data = data_of((None, 'skip', NAN), (None, 'skip', NAN), (None, 'skip', NAN))
    data.incidents[0] = dataclasses.replace(data.incidents[0], diagnosis='it was', tensors=())
    (kind,) = report_data.kinds_of(data)
    assert kind.said.startswith('All 3 incidents are of this kind. 2 of them only have the')


def test_incidents_are_of_one_kind_if_their_causes_differ_in_numbers_only():
    causes = [
        'in the input: bad data: 1 NaN among 2048 values, in row 0',
        'not finite: gradient of conv1/weights',
        'in the input: bad data: 3 NaN among 2048 values, in rows 3, 5, 7',
        'not finite: gradient of conv2/weights',
    ]
    kinds = report_data.kinds_of(data_of(*[(n, 'skip', it) for n, it in enumerate(causes)]))
    none = 'The cause was not looked for.'
    many = '2 incidents are of this kind, at steps 0 and 2: 2 skipped. '
    assert [kind.said for kind in kinds] == [many + none + ' Below is the first.', none, none]
    assert kinds[0].first.headline == 'In' + causes[0][2:]


def test_the_headline_of_several_incidents_is_without_the_row_of_one():
    causes = ['in the forward pass: log of 0 (1 of 8 values), in row %d' % n for n in (5, 6)]
    data = data_of((1, 'skip', NAN), (2, 'skip', NAN))
    both = [dataclasses.replace(i, diagnosis=it) for i, it in zip(data.incidents, causes)]
    (kind,) = report_data.kinds_of(data._replace(incidents=both))
    assert kind.headline == 'In the forward pass: log of 0.'
    shown = page.render(data._replace(incidents=both))
    assert shown.count('In the forward pass: log of 0 (1 of 8 values), in row 5.') == 1  # the card
    assert shown.count('<span>in the forward pass: log of 0</span>') == 1  # the table
    (kind,) = report_data.kinds_of(data._replace(incidents=both[:1]))
    assert kind.headline.endswith(', in row 5.')


@pytest.mark.parametrize('count', ['(1 of 16 rows)', '(2 of 9 labels)', '(3 of 8 values)'])
def test_a_headline_leaves_no_empty_brackets(count):
    cause = 'softmax of nothing but -Inf %s, in row 11' % count
    assert without_rows(cause) == 'softmax of nothing but -Inf'


def test_an_end_without_a_bundle_has_those_of_its_kind_behind_it():
    said = [(1, 'skip', NAN, 'step-1'), (2, 'skip', 'other', 'step-2'), (3, 'raise', NAN)]
    bundles = [bundle_of('step-1', text=''), bundle_of('step-2', text='')]
    first, other = report_data.kinds_of(data_of(*said, bundles=bundles))
    assert (first.first.step, first.first.opened) == (3, None)
    assert [it.opened.name for it in first.alike] == ['step-1']
    assert other.first.opened.name == 'step-2'


def test_without_a_record_the_bundles_are_told():
    bundles = [bundle_of('step-1'), bundle_of('step-2', 7)]
    data = data_of(bundles=bundles, notes=['step-3 cannot be read: x'])
    (kind,) = report_data.kinds_of(data)
    assert kind.first.opened.name == 'step-1' and kind.alike[0].heading == 'Step 7'
    assert 'step-3 cannot be read: x' in page.render(data)


def test_an_explosion_opens_with_its_cause_if_the_history_has_it():
    said = (103, 'raise', 'above max_loss: loss', 'step-103')

    def shown(*lines, rows=()):
        bundles = [bundle_of('step-103', 103, rows=rows)]
        data = data_of(said, bundles=bundles, diagnosis='\n'.join(lines))
        return report_data.kinds_of(data)[0].first

    jump = 'the learning rate went from 0.02 to 4 at step 101; the loss followed 3 steps later'
    above = 'in the forward pass: the loss is above its limit, and everything is finite'
    it = shown(jump, above)
    assert it.headline == 'T%s.' % jump[1:] and len(it.commands) == 1
    assert it.more == 'I%s.' % above[1:] and 'learning rate as it was' in it.to_do
    grown = 'the loss went from 1 at step 40 to 1e+17 at step 61; then Square overflowed'
    it = shown(grown, 'in the forward pass: overflow of float32: Square')
    assert it.is_explosion and 'rollback' in it.to_do
    cured = dataclasses.replace(it, action='rollback').to_do
    assert 'spike=True' in cured and 'rollback' not in cured
    assert it.headline == 'T%s.' % grown[1:] and 'smaller learning rate' in it.to_do
    log = shown(grown, 'in the forward pass: log of 0').to_do
    assert 'tf.reduce_logsumexp of their log' in log and 'smaller learning rate' in log
    it = shown('in the forward pass: log of 0, in row 2', '  Log:0 (Log)', rows=[2])
    assert it.headline == 'In the forward pass: log of 0, in row 2.' and it.more == ''
    assert not it.is_explosion
    assert len(it.commands) == 2 and 'learning rate' not in it.to_do


def test_the_reason_is_the_cause_and_symptoms_are_what_was_seen(tmp_path):
    told = 'in the forward pass: log of 0\n  not all was examined, in row 5'
    known = {'diagnosis': told, 'advice': 'Train slower.', 'state_lost': True}
    record(tmp_path, line(step=9, action='raise', reason=NAN, **known))
    seen = see(tmp_path, png=str(tmp_path / 'x.png'))
    for said in (
        'In the forward pass: log of 0.',
        'in row 5',
        'maximum(x, 1e-7)',
        'Train slower.',
        'were bad before the',
    ):
        assert said in seen.text
    assert seen.words.count('in the forward pass: log of 0') == 1  # in the table
    assert 'To run this step again' not in seen.text


def test_of_very_many_kinds_the_largest_are_shown(tmp_path):
    reasons = ['v%d/weights' % (n % 70) for n in range(100)]
    record(tmp_path, *[line(step=n, action='skip', reason=it) for n, it in enumerate(reasons)])
    seen = see(tmp_path)
    assert len(seen.of('article')) == 20 and len(rows_of(seen)) == 100


def test_the_page_is_in_the_order_of_what_matters():
    said = [(1, 'skip', NAN, 'step-1'), (2, 'raise', 'other', 'step-2')]
    bundles = [bundle_of('step-1', text=''), bundle_of('step-2', text='')]
    curve = curve_of('loss', [np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]])])
    shown = page.render(data_of(*said, bundles=bundles)._replace(curve=curve))
    order = [shown.index(it) for it in ('id="step-2"', '>Loss<', 'id="step-1"', '<table')]
    assert order == sorted(order)
    assert [a['href'] for a in Seen(shown).of('a')].count('#step-1') == 3  # a row, two marks


def test_what_to_do_fits_the_cause_and_the_commands_are_ready_to_copy():
    causes = (
        'division by 0 (1 of 16 values), in row 2',
        'Foo made NaN from finite inputs',
        'overflow of exp: its input is as large as 1e+09. The weights are as large as 1e+09 (w)',
    )
    pages = []
    for cause in causes:
        bundles = [bundle_of('/a b/slimguard/step-1', text='in the forward pass: ' + cause)]
        pages.append(page.render(data_of((1, 'skip', NAN, 'step-1'), bundles=bundles)))
    assert 'tf.math.divide_no_nan(x, y)' in pages[0] and 'divide_no_nan' not in pages[1]
    assert 'a small epsilon' in pages[1]
    # The advice is on the explosion, not on the op that overflowed after it.
    assert 'a smaller learning rate' in pages[2] and 'tf.minimum' not in pages[2]
    replay = "python -m slimguard replay '/a b/slimguard/step-1'"
    said = '<pre class="command">%s</pre>\n<pre class="command">%s --without 2</pre>\n'
    said = said % (replay, replay)
    assert said.replace("'", '&#39;') in pages[0]


def test_no_line_ends_within_an_option():
    data = data_of((1, 'raise', NAN))
    advised = dataclasses.replace(
        data.incidents[0], advice='X <b> (or --on_nan=skip:5), --' + 's' * 99
    )
    shown = page.render(data._replace(incidents=[advised]))
    assert 'X &lt;b&gt; (or <span class="option">--on_nan=skip:5</span>), --sss' in shown


@pytest.mark.parametrize('is_known', [True, False])
def test_only_the_numbers_that_are_at_fault_are_open(is_known):
    it = bundle_of('step-1')
    drawn = {'x:0': np.arange(8).reshape([4, 2]), 'w:0': np.zeros([4])}
    batch = samples.in_numbers(drawn, suspects=['w:0'] if is_known else [])
    it = dataclasses.replace(it, opened=it.opened._replace(batch=batch))
    shown = page.render(data_of((1, 'skip', NAN, 'step-1'), bundles=[it]))
    assert 'row 1: 2 3' in shown and 'all 4 numbers are 0' in shown
    assert shown.count('<details open>') == is_known
    assert not is_known or shown.index('w:0') < shown.index('x:0')


@pytest.mark.parametrize('at', [500, 3, 998, None])
def test_the_ranges_are_those_before_and_after_the_tensor_at_fault(at):
    found = dict(dtype='float32', shape=[2], min=0.0, max=1.0, nan=0, inf=0)
    rows = [dict(tensor='x%d:0' % n, range=found, phase='forward') for n in range(1000)]
    said = {'ranges': rows, 'tensor': at and 'x%d:0' % at}
    opened = cards._with_ranges(cards.Opened('x'), said)
    shown = opened.ranges
    # The tensor where it began comes first.
    assert [it.begins for it in shown] == [at is not None] + [False] * 39
    numbers = [int(it.tensor[1:-2]) for it in shown]
    assert at in (None, numbers[0]) and sorted(numbers) == list(
        range(min(numbers), max(numbers) + 1)
    )
    assert shown[0].range == 'float32[2], from 0 to 1'
    assert '40 of 1000 tensors' in opened.ranges_note


def test_the_facts_are_the_lines_of_the_diagnosis():
    lines = [
        'the loss went from 1 at step 3 to 1e+09 at step 9; then Log overflowed',
        'in the forward pass: log of 0',
        '  a/Log:0 (Log, gradient of b)',
        '  /x/train.py:92, in features: y = x[1:2]',
        '  input c:0 (lr): float32[6, 4], from 0 to 1: 0 at [2, 1]',
        '  output: float32[6], 1 of 6 Inf',
        '  at [2] = -inf and 3 more',
        '  not all of it was examined: why',
    ]
    data = data_of((1, 'raise', NAN), diagnosis='\n'.join(lines))
    it = data.incidents[0]
    assert it.more == 'In the forward pass: log of 0.'
    assert it.facts[:6] == [
        ('Your line', '/x/train.py:92, in features', '', 'y = x[1:2]'),
        ('Tensor', 'a/Log:0 (Log, gradient of b)', '', ''),
        ('Input', 'c:0 (lr)', 'float32[6, 4], from 0 to 1: 0 at [2, 1]', ''),
        ('Value', '', 'float32[6], 1 of 6 Inf', ''),
        ('Where', '', '-inf at [2] and 3 more', ''),
        ('Note', '', 'not all of it was examined: why', ''),
    ]


def test_the_starts_of_a_logdir_are_told_apart(tmp_path):
    said = [(4, 'w0', 1.0), (2, 'w1', 1.5), (3, 'w0', 2.0), (3, 'w0', 2.0)]
    record(tmp_path, *(line(step=s, worker=w, started=start) for s, w, start in said[:2]))
    assert ' starts of' not in see(tmp_path).text  # two workers of one start
    record(tmp_path, *(line(step=s, worker=w, started=start) for s, w, start in said))
    seen = see(tmp_path)
    assert '4 incidents, in 2 starts of the training' in seen.text
    assert 'at steps 2 to 4, in 2 starts of the training' in seen.text
    assert 'Incident 1, step 4, start 1' in seen.text
    classes = [it.get('class') or it['id'] for it in seen.of('tr') if it]
    assert classes == ['start', 'row-1', 'start', 'row-3']
