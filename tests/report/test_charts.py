"""The charts: they place any finite number, hostile words stay text, marks have links."""

import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from slimguard.incidents.incident import Incident
from slimguard.report import cards, charts, last_steps, samples
from slimguard.report.loss_history import Curve
from tests.report.pages import HOSTILE
from tests.report.test_last_steps import INF, NAN, history_of, steps_of


def drawn(chart):
    """The chart as SVG elements, at both widths. Asserts that all points are within the frames."""
    assert charts.pixels(chart).shape[1] == charts.WIDE * 4 // 3
    with charts._style():
        plots = chart.draw(charts.WIDE).axes
    for plot in plots:
        ends = [sorted(plot.get_xlim()), sorted(plot.get_ylim())]
        for points in (line.get_xydata() for line in plot.lines):
            points = points[~np.isnan(points).any(axis=1)]
            assert ((points >= np.min(ends, axis=1)) & (points <= np.max(ends, axis=1))).all()
    both = [charts.svg(chart, 'x', width) for width in (charts.WIDE, charts.NARROW)]
    for text in both:
        for said in re.findall(r' (?:x|y|d|width|height|transform|viewBox)="([^"]*)"', text):
            assert not re.search('nan|inf|None', said)
    return [ElementTree.fromstring(text) for text in both]


def incidents_of(steps, **said):
    said = dict({'reason': 'x'}, **said)
    records = enumerate([dict(said, step=step, action='skip') for step in steps], 1)
    return [cards.incident_of(Incident.from_dict(it), number) for number, it in records]


def loss_chart(losses, steps=(), first=0, **said):
    curve = None
    if losses:
        points = np.stack([first + np.arange(len(losses), dtype=float), losses], axis=1)
        curve = Curve(HOSTILE, [points], len(losses), 0)
    incidents = incidents_of(steps, **said)
    links = {it.number: '#row-%d' % it.number for it in incidents}
    return charts.loss_chart(curve, incidents, links)


EXTREMES = [
    [1e-280, 1e308],
    [5e-324, 1e-323, 0.0],
    [-1.7976931348623157e308, 1.7976931348623157e308],
    [1.7976931348623157e308] * 3,
    [7.0, 7.0 + 1e-15],
]


@pytest.mark.parametrize('first', [0, 2**62])
@pytest.mark.parametrize('losses', EXTREMES, ids=str)
def test_losses_and_steps_of_any_size_have_a_place(losses, first):
    for root in drawn(loss_chart(losses, [0, 10**15 - 1], first)):
        assert any('skipped (2)' in (it.text or '') for it in root.iter('text'))


def test_a_mark_leads_to_its_incident_and_one_for_many_to_the_first():
    chart = loss_chart([3.0, 2.0, 1.0], [0, 10, 44, 46, 500, 1000], reason=HOSTILE)
    for root in drawn(chart):
        links = {a.attrib['href']: a for a in root.iter('a')}
        assert list(links) == ['#row-1', '#row-4', '#row-5', '#row-6']
        assert links['#row-1'].attrib['aria-label'] == 'steps 0 to 44: 3 incidents, skipped'
        assert links['#row-5'].find('title').text == 'step 500, skipped: ' + HOSTILE
        assert any(HOSTILE[:30] in (it.text or '') for it in root.iter('text'))


def test_thousands_of_incidents_are_few_marks_and_the_caption_says_so():
    chart = loss_chart([3.0, 2.0, 1.0], range(5000))
    assert chart.said == 'Incidents that are close together share a mark.'
    for root in drawn(chart):
        assert 10 < len(list(root.iter('a'))) <= 23


def test_of_two_trainings_the_last_is_dark_and_the_caption_says_so():
    points = np.array([[0.0, 3.0], [1.0, 2.0]])
    chart = charts.loss_chart(Curve('loss', [points, points / 2], 4, 0), [], {})
    assert 'Where the step went back, a new curve begins.' in chart.said
    with charts._style():
        lines = chart.draw(charts.WIDE).axes[0].lines
    assert [line.get_alpha() for line in lines[::2]] == [0.4, 1]


def test_without_a_curve_there_is_no_chart():
    assert loss_chart([], range(5)) is None


@pytest.mark.parametrize('norm', [1, 1e9, NAN])
def test_of_an_explosion_the_caption_names_no_step(norm):
    norms = np.ones([9, 2])
    norms[7:] = norm
    steps = steps_of(norms)
    assert 'gradient' in charts.last_steps_chart(steps).said
    said = charts.last_steps_chart(steps, is_explosion=True).said
    assert said == 'The learning rate is 0.1 at the last step.'


@pytest.mark.full
def test_charts_on_one_page_share_no_id_and_leave_its_style_alone():
    chart = charts.last_steps_chart(steps_of(np.ones([9, 2]), loss=[1.0] * 9))
    ids = []
    for name in 'ab':
        for width in (charts.WIDE, charts.NARROW):
            root = ElementTree.fromstring(charts.svg(chart, name, width))
            own = [it.attrib['id'] for it in root.iter() if 'id' in it.attrib]
            text = ElementTree.tostring(root, 'unicode')
            assert set(re.findall(r'url\(#(.*?)\)', text)) <= set(own)
            assert not list(root.iter('style')) and not list(root.iter('metadata'))
            assert root.attrib['role'] == 'img' and root.attrib['aria-label'] == chart.said
            ids += own
    assert len(ids) == len(set(ids))


def test_colours_are_variables_of_the_page_and_text_is_text():
    text = charts.svg(loss_chart([2.0, 1.0], [1]), 'x', charts.WIDE)
    assert 'var(--curve)' in text and 'var(--skip)' in text and '#33414e' not in text
    assert '>global step</text>' in text


def test_the_settings_of_the_user_have_no_say_and_are_not_changed(monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, 'text.usetex', True)
    before = dict(matplotlib.rcParams)
    drawn(loss_chart([2.0, 1.0], [1]))
    assert dict(matplotlib.rcParams) == before


ODD = {
    'hostile names': history_of(np.ones([2, 2]), [(HOSTILE, HOSTILE), ('\u202e\x00\ud800',)]),
    'nothing finite': history_of(np.full([20, 3], NAN), loss=[INF] * 20, good=[False] * 20),
    'nothing known': dict(
        history_of(np.ones([3, 2])),
        step=[None] * 3,
        loss=[None] * 3,
        learning_rate=[None] * 3,
        gradient_norm=[None] * 3,
        gradient_norms=[[None, None]] * 3,
    ),
    'huge numbers': dict(
        history_of(np.ones([4, 2])),
        step=[0, 2**63 - 1, -(2**63) + 1, 5],
        loss=[1.7e308, -1.7e308, 2**62, 0],
        learning_rate=[1e300] * 4,
        gradient_norm=[1.7e308, 5e-324, 0, 1e-300],
        gradient_norms=[[1.7e308, 5e-324], [0, 0], [-1, 1], [1e308, 1e-308]],
    ),
    'a rollback': history_of(np.ones([6, 1]), loss=[3, 2, 1, 3, 2, 1], step=[1, 2, 3, 1, 2, 3]),
    'many gradients': history_of(np.ones([2, 5000]), [('a/' * 500 + str(n),) for n in range(5000)]),
}


@pytest.mark.parametrize('name', ODD)
def test_odd_histories_are_drawn(name):
    chart = charts.last_steps_chart(last_steps.last_steps_of(ODD[name]))
    for root in drawn(chart):
        assert len(ElementTree.tostring(root)) < 0.3e6
    if name == 'hostile names':
        said = [it.text for it in root.iter('text')]
        assert any('\\u202e\\x00\\ud800' in it for it in said)


def heat_of(norms):
    """The colours of the heat map, and its names."""
    steps = steps_of(norms)
    ratios = last_steps.ratios_of(steps)
    begin = last_steps.beginning_of(steps, ratios)
    names, rows, begins = charts._heat_rows(steps, ratios, begin)
    with charts._style():
        figure, plots = charts._plots(charts.WIDE, [20], 0)
        charts._draw_heat(plots, rows, ['x'] * len(rows), charts.WIDE)
    (image,) = plots[0].images
    return image.to_rgba(image.get_array(), bytes=True)[..., :3], names, begins


def test_the_colours_are_by_the_median_of_each_row_and_not_by_its_size():
    norms = np.ones([9, 2]) * [1e-3, 1e6]
    norms[8] *= 1000
    norms[7] = [NAN, INF]
    shown, _, _ = heat_of(norms)
    np.testing.assert_array_equal(shown[0], shown[1])
    assert tuple(shown[0, 7]) == samples.BAD
    assert tuple(shown[0, 0]) == (238, 236, 230) and tuple(shown[0, 8]) == (96, 24, 6)


@pytest.mark.parametrize('gradients, lines', [(1, 1), (40, 40), (41, 21), (3005, 40)])
def test_every_gradient_has_a_name_beside_it_or_is_counted(gradients, lines):
    norms = np.ones([6, gradients])
    norms[3, gradients - 1] = 1e4
    shown, names, begins = heat_of(norms)
    assert len(names) == len(shown) == lines
    assert sum(1 + others for _, others in names) == gradients
    # A row that several gradients share shows the largest one, and has its name.
    assert tuple(shown[-1, 3]) == (96, 24, 6)
    assert begins == lines - 1
    assert names[-1][0] == 'layer%d/weights' % (gradients - 1)


@pytest.mark.parametrize(
    'steps, ticks',
    [
        (range(1, 106), [20, 40, 60, 80, 100]),
        ([*range(7), 6, 6, 7, 8], [0, 2, 4, 6, 8]),  # steps that were held come again
        ([*range(30), *range(20, 31)], [0, 10, 20, 20, 30]),  # a rollback
        ([1, 12, 23], [1, 23]),
        (range(-199, 1), [-150, -100, -50, 0]),
        ([4] * 9, [4]),
    ],
)
def test_the_ticks_of_the_last_steps_are_round(steps, ticks):
    assert [list(steps)[at] for at in charts._step_ticks(list(steps), 7)] == ticks


@pytest.mark.parametrize('side, rings', [(8, 0), (40, 4)])
def test_a_bad_sample_is_framed_and_a_bad_pixel_too_small_to_be_seen_has_a_ring(side, rings):
    value = np.random.RandomState(1).uniform(0, 1, [4, side, side, 1])
    value[2, 3, 5, 0] = NAN
    (sheet,) = samples.sheets({HOSTILE: value})
    shown = charts.pixels(charts.samples_chart(sheet))[..., :3].astype(int)
    bad = np.abs(shown - samples.BAD).sum(axis=2) < 9
    assert bad.sum() > 50
    for root in drawn(charts.samples_chart(sheet)):
        assert len(list(root.iter('image'))) == 4
        assert [it.text for it in root.iter('text')].count('1 not finite') == 1
        assert sum('var(--ring)' in it.attrib.get('style', '') for it in root.iter()) == rings // 4


def test_a_step_that_goes_back_is_marked():
    steps = steps_of(np.ones([6, 2]), step=[1, 2, 3, 2, 3, 4])
    (root, _) = drawn(charts.last_steps_chart(steps))
    assert 'the step went back' in ''.join(root.itertext())
    (root, _) = drawn(charts.last_steps_chart(steps_of(np.ones([6, 2]))))
    assert 'the step went back' not in ''.join(root.itertext())
    points = np.array([[0.0, 3.0], [1.0, 2.0]])
    chart = charts.loss_chart(Curve('loss', [points], 2, 0, [1.0]), [], {})
    assert 'A dotted line: ' in chart.said
