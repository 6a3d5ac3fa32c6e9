"""What a report opens with, the kinds of incidents, and what is said of each."""

import dataclasses

import numpy as np
import pytest

from slimguard.report import cards, html, report_data, samples
from tests.report.pages import Seen, line, record, rows_of, see

NAN = 'not finite: loss total_loss'


def data_of(*said, bundles=(), diagnosis='', unreadable=()):
    """A report of incidents of (step, action, reason, bundle)."""
    names = ('step', 'action', 'reason', 'bundle')
    records = enumerate([dict(zip(names, each), diagnosis=diagnosis) for each in said], 1)
    incidents = [report_data.incident_of(number, it) for number, it in records]
    there = {it.opened.name: it for it in bundles}
    incidents = [
        dataclasses.replace(it, opened=there.pop(it.bundle_name).opened)
        if it.bundle_name in there
        else it
        for it in incidents
    ]
    others = list(there.values())
    return report_data.ReportData('x', '', None, incidents, others, list(unreadable), [])


def bundle_of(name, step=1, phase='forward', cause='of the diagnosis', explosion='', rows=(2,)):
    said = '%s: of the diagnosis.' % phase
    opened = report_data.BundleView(name, phase, explosion, said, cause, rows)
    return report_data.incident_of(0, {'step': step, 'reason': 'of the bundle'}, opened)


def first_of(*said, **kwargs):
    kind = cards.kinds_of(data_of(*said, **kwargs), None)[0]
    return kind.count.rpartition('; ')[2], kind.card.heading


@pytest.mark.parametrize('end', ['raise', 'stop', 'error'])
def test_it_opens_with_what_ended_the_training(end):
    said = [(1, 'skip', NAN), (2, 'rollback', NAN), (3, end, 'loss 7 is above max_loss: x')]
    assert first_of(*said) == ('the one shown ended the training', 'Step 3')
    assert first_of(*said, (4, 'skip', NAN)) == (
        'the one shown ended a run, but not the training',
        'Step 3',
    )


def test_or_with_the_first_of_the_kind_of_most_incidents():
    said = [(1, 'skip', 'other'), (2, 'skip', NAN), (3, 'rollback', NAN)]
    assert first_of(*said) == ('the first is shown', 'Step 2')
    assert first_of((5, 'skip', NAN)) == ('Not examined', 'Step 5')


def test_incidents_that_were_examined_come_ahead_of_more_that_were_not():
    data = data_of((1, 'skip', 'examined'), (2, 'skip', NAN), (3, 'skip', NAN))
    found = dataclasses.replace(data.incidents[0], diagnosis='in the forward pass: log of 0')
    data.incidents[0] = found
    first, second = cards.kinds_of(data, None)
    assert (first.card.heading, second.count[:7]) == ('Step 1', '2 alike')


def test_incidents_alike_are_one_card_and_a_line_for_each_other_one():
    said = [(n, 'skip', 'loss %d is above' % n, '/x/incident-%d' % n) for n in range(1, 9)]
    bundles = [bundle_of('incident-6'), bundle_of('incident-7')]
    (kind,) = cards.kinds_of(data_of(*said, bundles=bundles), None)
    assert (kind.heading, kind.card.heading) == ('forward: of the diagnosis.', 'Step 6')
    assert kind.count == '8 alike, steps 1 to 8: 8 skip; the first that was kept is shown'
    assert [card.heading for card in kind.alike] == ['Step 7']
    assert kind.card.to_do and not kind.alike[0].to_do  # said once


def test_incidents_are_of_one_kind_if_their_causes_differ_in_numbers_only():
    causes = [
        'in the input: bad data: 1 NaN among 2048 values, in row 0',
        'not finite: gradient of conv1/weights',
        'in the input: bad data: 3 NaN among 2048 values, in rows 3, 5, 7',
        'not finite: gradient of conv2/weights',
    ]
    kinds = cards.kinds_of(data_of(*[(n, 'skip', it) for n, it in enumerate(causes)]), None)
    alike = '2 alike, steps 0 to 2: 2 skip; not examined; the first is shown'
    assert [kind.count for kind in kinds] == [alike, 'Not examined', 'Not examined']
    assert kinds[0].heading == 'In' + causes[0][2:]


def test_an_end_without_a_bundle_has_those_of_its_kind_behind_it():
    said = [(1, 'skip', NAN, 'incident-1'), (2, 'skip', 'other', 'incident-2'), (3, 'raise', NAN)]
    bundles = [bundle_of('incident-1'), bundle_of('incident-2')]
    first, other = cards.kinds_of(data_of(*said, bundles=bundles), None)
    assert (first.card.heading, first.card.opened) == ('Step 3', None)
    assert [card.opened.name for card in first.alike] == ['incident-1']
    assert other.card.opened.name == 'incident-2'


def test_without_a_record_the_bundles_are_told():
    bundles = [bundle_of('incident-1'), bundle_of('incident-2', 7)]
    data = data_of(bundles=bundles, unreadable=['incident-3 cannot be read: x'])
    (kind,) = cards.kinds_of(data, None)
    assert kind.card.opened.name == 'incident-1' and kind.alike[0].heading == 'Step 7'
    assert 'incident-3 cannot be read: x' in html.render(data)


def test_an_explosion_opens_with_its_cause_if_the_history_has_it():
    said = (103, 'raise', 'above max_loss: loss', 'incident-103')

    def card_of(**kwargs):
        bundles = [bundle_of('incident-103', 103, **kwargs)]
        return cards.kinds_of(data_of(said, bundles=bundles), None)[0].card

    explosion = 'the learning rate went from 0.02 to 4 at step 101; the loss followed 3 steps later'
    card = card_of(explosion=explosion, rows=())
    assert card.headline == 'T%s.' % explosion[1:] and len(card.commands) == 1
    assert card.more == 'forward: of the diagnosis.' and 'learning rate as it was' in card.to_do
    grown = 'the loss went from 1 at step 40 to 1e+17 at step 61; then Square overflowed'
    card = card_of(explosion=grown, cause='overflow of float32: Square', rows=())
    assert card.headline == 'T%s.' % grown[1:] and 'smaller learning rate' in card.to_do
    card = card_of()
    assert card.headline == 'forward: of the diagnosis.' and card.more == ''
    assert len(card.commands) == 2 and 'learning rate' not in card.to_do


def test_the_reason_is_the_cause_and_symptoms_are_what_was_seen(tmp_path):
    known = {'diagnosis': 'log of 0\nin row 5', 'advice': 'train slower', 'state_lost': True}
    record(tmp_path, line(step=9, action='raise', reason=NAN, **known))
    seen = see(tmp_path, png=str(tmp_path / 'x.png'))
    for said in (
        'Log of 0',
        'in row 5',
        'maximum(x, 1e-7)',
        'Train slower.',
        'were bad before the',
    ):
        assert said in seen.text
    assert seen.words.count('log of 0') == 1  # in the table
    assert 'To run it again' not in seen.text


def test_of_very_many_kinds_the_largest_are_shown(tmp_path):
    reasons = ['v%d/weights' % (n % 70) for n in range(100)]
    record(tmp_path, *[line(step=n, action='skip', reason=it) for n, it in enumerate(reasons)])
    seen = see(tmp_path)
    assert len(seen.of('article')) == 20 and len(rows_of(seen)) == 100


def test_the_page_is_in_the_order_of_what_matters():
    said = [(1, 'skip', NAN, 'incident-1'), (2, 'raise', 'other', 'incident-2')]
    bundles = [bundle_of('incident-1'), bundle_of('incident-2')]
    page = html.render(data_of(*said, bundles=bundles))
    order = [page.index(it) for it in ('id="incident-2"', '>Loss<', 'id="incident-1"', '<table')]
    assert order == sorted(order)
    assert [a['href'] for a in Seen(page).of('a')].count('#incident-1') == 3  # marks, and a row


def test_what_to_do_fits_the_cause_and_the_commands_are_ready_to_copy():
    causes = (
        'division by 0 (1 of 16 values), in row 2',
        'Foo made NaN from finite inputs',
        'overflow of exp: its input is as large as 1e+09. The weights are as large as 1e+09 (w)',
    )
    pages = []
    for cause in causes:
        data = data_of(
            (1, 'skip', NAN, 'incident-1'),
            bundles=[bundle_of('/a b/slimguard/incident-1', cause=cause)],
        )
        pages.append(html.render(data))
    assert 'tf.math.divide_no_nan(x, y)' in pages[0] and 'divide_no_nan' not in pages[1]
    assert 'a small epsilon' in pages[1]
    # An op that only shows that the training had exploded is not what to mend.
    assert 'a smaller learning rate' in pages[2] and 'tf.minimum' not in pages[2]
    replay = "python -m slimguard replay '/a b/slimguard/incident-1'"
    said = '<pre class="command">%s\n%s --without 2</pre>' % (replay, replay)
    assert said.replace("'", '&#39;') in pages[0]


@pytest.mark.parametrize('has_images', [True, False])
def test_the_numbers_of_a_label_are_folded_beside_the_images_it_is_of(has_images):
    it = bundle_of('incident-1')
    drawn = {'x:0': np.zeros([4, 8, 8, 1])} if has_images else {}
    batch = samples.in_numbers(dict(drawn, **{'label:0': np.arange(4)}))
    opened = it.opened._replace(batch=batch, sheets=samples.sheets(drawn))
    it = dataclasses.replace(it, opened=opened)
    page = html.render(data_of((1, 'skip', NAN, 'incident-1'), bundles=[it]))
    assert 'row 1: 1' in page and ('<details open>' in page) != has_images


def test_what_is_kept_is_said_of_one_incident_and_of_some():
    one, two = (1, 'skip', NAN, 'incident-1'), (2, 'raise', NAN)
    bundles = [bundle_of('incident-1')]
    said = [report_data.summary(data_of(*it, bundles=bundles)) for it in ([one], [one, two])]
    assert said[0] == 'One incident: 1 skipped. Its step is kept, to be run again.'
    assert said[1].endswith('1 raised, 1 skipped. One of them is kept, to be run again.')
