"""What a report opens with, the kinds of incidents, and their marks on the curve."""

import json

import numpy as np
import pytest

from slimguard.report import (
    bundle_view,
    html,
    incident_marks,
    incident_tables,
    incident_view,
    lead,
    report_data,
    scales,
)
from tests.report.test_report import Seen, line, record, rows_of, see


def incidents_of(*said):
    """Incidents of (step, action, reason) or of whole records."""
    names = ('step', 'action', 'reason', 'bundle')
    records = [each if isinstance(each, dict) else dict(zip(names, each)) for each in said]
    return [incident_view.view_of(number, it) for number, it in enumerate(records, 1)]


def bundle_of(name, step=1):
    empty = dict.fromkeys(bundle_view.BundleView._fields, '')
    lists = dict.fromkeys(('inputs', 'not_examined', 'layers', 'sheets'), [])
    incident = incident_view.view_of(0, {'step': step, 'reason': 'of the bundle'})
    known = {'name': name, 'incident': incident, 'steps': None}
    return bundle_view.BundleView(**dict(empty, **lists, **known))


def led(*said, bundles=()):
    found = lead.lead_of(incidents_of(*said), bundles)
    return found.heading, found.incident.step


NAN = 'not finite: loss total_loss'


@pytest.mark.parametrize('end', ['raise', 'stop', 'error'])
def test_it_opens_with_what_ended_the_training(end):
    said = [(1, 'skip', NAN), (2, 'rollback', NAN), (3, end, 'loss 7 is above max_loss: x')]
    assert led(*said) == ('What ended the training', 3)
    assert led(*said, (4, 'skip', NAN)) == ('What ended a run of the training', 3)


def test_or_with_the_first_of_the_kind_of_most_incidents():
    said = [(1, 'skip', 'other'), (2, 'skip', NAN), (3, 'rollback', NAN)]
    assert led(*said) == ('The first of 2 alike', 2)
    assert led((5, 'skip', NAN)) == ('What happened', 5)


def test_the_first_of_its_kind_that_was_kept_comes_before_one_of_which_nothing_is_left():
    said = [(n, 'skip', 'loss %d is above' % n, '/x/incident-%d' % n) for n in range(1, 9)]
    bundles = [bundle_of('incident-6'), bundle_of('incident-7')]
    found = lead.lead_of(incidents_of(*said), bundles)
    assert (found.heading, found.incident.step) == ('The first that was kept of 8 alike', 6)
    assert found.bundle is bundles[0] and found.alike is None


def test_an_end_without_a_bundle_leads_to_one_of_its_kind():
    said = [(1, 'skip', NAN, 'incident-1'), (2, 'skip', 'other', 'incident-2'), (3, 'raise', NAN)]
    found = lead.lead_of(incidents_of(*said), [bundle_of('incident-1'), bundle_of('incident-2')])
    assert (found.incident.step, found.bundle, found.alike.name) == (3, None, 'incident-1')


def test_without_a_record_it_opens_with_the_last_bundle():
    broken = bundle_view.UnreadableBundle('incident-3', 'x')
    bundles = [bundle_of('incident-1'), bundle_of('incident-2', 7), broken]
    found = lead.lead_of([], bundles)
    assert (found.bundle, found.incident.step) == (bundles[1], 7)
    assert lead.lead_of([], [broken]) is None and lead.lead_of([], []) is None


def test_what_the_record_knows_is_shown_where_there_is_no_bundle(tmp_path):
    known = {'diagnosis': 'log of 0\nin row 5', 'advice': 'train slower', 'state_lost': True}
    record(tmp_path, line(step=9, action='raise', reason='the loss of 9', **known))
    seen = see(tmp_path, png=str(tmp_path / 'x.png'))
    assert len(seen.of('article')) == 1
    for said in ('log of 0\nin row 5', 'train slower', 'variables were bad before the step'):
        assert said in seen.text
    assert seen.words.count('the loss of 9') == 2  # above, and in the table
    assert 'To run it again' not in seen.text


def test_the_bundle_it_opens_with_is_not_shown_again():
    incidents = incidents_of((1, 'skip', NAN, 'incident-1'), (2, 'raise', NAN, 'incident-2'))
    bundles = [bundle_of('incident-1'), bundle_of('incident-2')]
    seen = Seen(html.render(report_data.ReportData('x', '', None, incidents, bundles, [])))
    assert [a['id'] for a in seen.of('article')] == ['incident-2', 'incident-1']
    assert 'What made the others bad' in seen.text


# Kinds.


def test_incidents_are_of_one_kind_if_their_reasons_differ_in_numbers_only():
    reasons = [
        'gradient norm 3.1e9 is 2.4e6 times the median 1290 of the last 100 good steps',
        'not finite: gradient of conv1/weights',
        'gradient norm inf is 7 times the median 0.5 of the last 3 good steps',
        'not finite: gradient of conv2/weights',
    ]
    found = lead.kinds_of(incidents_of(*[(n, 'skip', it) for n, it in enumerate(reasons)]))
    assert [[i.step for i in kind.members] for kind in found] == [[0, 2], [1], [3]]


def test_the_kinds_tell_how_many_where_and_what_was_done():
    said = [(n, 'skip' if n % 3 else 'rollback', 'loss %d is above' % n) for n in range(10, 19)]
    found = incident_tables.kinds_of(None, incidents_of((1, 'stop', 'other'), *said))
    assert [(row.count, row.steps, row.done) for row in found.rows] == [
        (9, 'steps 10 to 18', 'rollback 3, skip 6'),
        (1, 'step 1', 'stop 1'),
    ]
    assert found.rows[0].why == 'loss 10 is above' and found.rows[0].number == 2
    assert len(found.rows[0].bars) == 9 and len(found.rows[1].bars) == 1


def test_kinds_that_tell_no_more_than_the_incidents_are_not_shown():
    assert incident_tables.kinds_of(None, incidents_of((1, 'skip', 'a'), (2, 'skip', 'b'))) is None
    assert incident_tables.kinds_of(None, []) is None


def test_of_very_many_kinds_the_largest_are_shown(tmp_path):
    reasons = ['v%d/weights' % (n % 70) for n in range(100)]
    record(tmp_path, *[line(step=n, action='skip', reason=it) for n, it in enumerate(reasons)])
    found = incident_tables.kinds_of(None, report_data.gather(str(tmp_path)).incidents)
    assert len(found.rows) == 20 and [row.count for row in found.rows] == [2] * 20
    assert (found.left_out, found.incidents_left_out) == (50, 60)
    seen = see(tmp_path)
    assert '50 more kinds, of 60 incidents' in seen.text and len(rows_of(seen)) == 100


def test_incidents_without_a_step_have_kinds_and_no_place(tmp_path):
    record(tmp_path, *[line(step=None, action='skip')] * 3)
    found = incident_tables.kinds_of(None, report_data.gather(str(tmp_path)).incidents)
    assert [(row.count, row.steps, row.bars) for row in found.rows] == [(3, '', [])]
    assert '>None<' not in json.dumps(see(tmp_path).words)


# Marks.


def lane_of(steps, end=1000):
    incidents = incidents_of(*[(step, 'skip', 'x') for step in steps])
    x = scales.scale_of([0, end], 'linear', whole=True, padded=False)
    (lane,) = incident_marks.lanes_of(x, [(i.step, i) for i in incidents], 0)
    return lane


def test_marks_that_would_overlap_on_a_phone_are_one():
    lane = lane_of([0, 10, 44, 46, 500])
    assert [mark.said for mark in lane.marks] == [
        'steps 0 to 44: 3 incidents, skip',
        'step 46, skip: x',
        'step 500, skip: x',
    ]
    assert len(lane.hairs) == 5 and lane.bars == []
    places = [float(mark.x[:-1]) for mark in lane_of(range(0, 1000, 34)).marks]
    assert np.diff(places).min() * 310 / 100 >= 13  # pixels; a mark is 12 wide


@pytest.mark.parametrize('count', [31, 500, 5000])
def test_many_incidents_are_bars_that_do_not_overlap_and_count_them_all(count):
    steps = np.random.RandomState(0).randint(0, 1001, count).tolist()
    lane = lane_of(steps)
    assert lane.marks == [] and lane.hairs == [] and lane.count == count
    ends = [(float(b.x[:-1]), float(b.x[:-1]) + float(b.width[:-1])) for b in lane.bars]
    assert all(end < start for (_, end), (start, _) in zip(ends, ends[1:]))
    assert ends[0][0] >= 0 and ends[-1][1] <= 100
    x = scales.scale_of([0, 1000], 'linear', whole=True, padded=False)
    stepped = [(i.step, i) for i in incidents_of(*[(step, 'skip', 'x') for step in steps])]
    bins = incident_marks.bins_of(x, stepped)
    assert sum(len(members) for _, members in bins) == count
    tallest = max(bins, key=lambda it: len(it[1]))
    assert lane.most == len(tallest[1])
    heights = [float(bar.height) for bar in lane.bars]
    assert max(heights) == 16 and min(heights) >= 3
    assert lane.bars[np.argmax(heights)].said.startswith('steps ')
