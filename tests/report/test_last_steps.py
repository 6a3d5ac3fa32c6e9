"""The last steps before an incident: lines, ticks, the picture of the gradients, and the page."""

import base64
import itertools
import json
import math
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from slimguard.incidents.history import History
from slimguard.report import (
    heat_map,
    last_steps,
    last_steps_layout,
    last_steps_series,
    loss_tails,
    samples,
    step_ticks,
)
from slimguard.report.loss_history import Curve
from tests.diagnosis import test_bundle
from tests.helpers import zoo
from tests.report.test_report import (
    browse,
    harmless,
    in_a_browser,
    line,
    pixels,
    record,
    see,
)

tf1 = tf.compat.v1

NAN, INF = float('nan'), float('inf')


def history_of(norms, names=None, loss=None, step=None, good=None):
    """A history as a training makes it, of the norms [steps, gradients]."""
    norms = np.asarray(norms, float)
    steps, gradients = norms.shape
    names = names or [('layer%d/weights' % n,) for n in range(gradients)]
    columns = [
        np.arange(1.0, steps + 1) if step is None else np.asarray(step, float),
        np.ones(steps) if good is None else np.asarray(good, float),
        np.full(steps, NAN) if loss is None else np.asarray(loss, float),
        np.full(steps, 0.1),
    ]
    with np.errstate(over='ignore'):
        rows = np.concatenate([np.stack(columns, axis=1), norms**2 / 2], axis=1)
        return json.loads(json.dumps(History(tuple(names), list(rows)).to_dict()))


def steps_of(*args, **kwargs):
    return last_steps.last_steps_of(history_of(*args, **kwargs))


# What a bundle's history says.


def test_what_nobody_knows_is_masked_and_what_is_not_finite_is_not():
    said = history_of([[1.0, 2.0], [NAN, 4.0]], loss=[0.5, INF])
    said['learning_rate'] = [None, None]
    said['gradient_norms'][0][1] = None
    said['loss'][1] = 'Infinity'  # as incident.json has it
    found = last_steps.last_steps_of(said)
    assert found.learning_rate is None
    assert found.loss.tolist() == [0.5, INF]
    assert last_steps.is_bad(found.loss).tolist() == [False, True]
    assert last_steps.is_bad(found.norms).tolist() == [[False, False], [True, False]]
    assert found.norms.mask.tolist() == [[False, True], [False, False]]
    assert last_steps.finite(found.norms).tolist() == [1.0, 4.0]


def test_a_history_without_steps_is_none_and_one_without_gradients_has_no_norm():
    assert last_steps.last_steps_of(None) is None
    assert steps_of(np.zeros([0, 3])) is None
    found = steps_of(np.zeros([4, 0]), loss=[1, 2, 3, 4])
    assert found.gradient_norm is None and found.norms.shape == (4, 0)
    chart = last_steps_layout.chart_of(found)
    assert [it.name for it in chart.lines] == ['loss'] and chart.picture is None


def test_of_a_long_history_the_newest_steps_are_shown():
    found = steps_of(np.ones([last_steps.MOST_STEPS + 5, 1]))
    assert len(found.step) == len(found.norms) == last_steps.MOST_STEPS
    assert found.step[-1] == last_steps.MOST_STEPS + 5


# The lines.


def test_a_line_ends_where_a_value_is_not_finite_and_that_is_marked():
    found = steps_of(np.ones([5, 1]), loss=[1.0, NAN, INF, 2.0, 3.0])
    loss, norm = last_steps_series.series_of(found)
    assert [[x for x, _ in segment] for segment in loss.segments] == [
        [0.1],
        [pytest.approx(0.7), pytest.approx(0.9)],
    ]
    assert loss.bad == [(0.2, 0.6)]
    assert 'not finite in 2' in loss.said and 'at last 3' in loss.said
    assert norm.bad == [] and len(norm.segments) == 1


@pytest.mark.parametrize(
    'values, is_log',
    [
        ([1.0, 99.0], False),
        ([1.0, 101.0], True),
        ([0.0, 1.0, 1e9], True),
        ([0.0, 1.0, 2.0], False),
        ([-1.0, 1.0, 1e9], False),
        ([0.0, 0.0], False),
        ([5e-324, 1.7e308], True),
        ([-1.7e308, 1.7e308], False),
    ],
)
def test_a_line_is_logarithmic_over_more_than_two_decades_and_never_leaves_its_plot(values, is_log):
    (loss,) = last_steps_series.series_of(steps_of(np.zeros([len(values), 0]), loss=values))
    assert loss.is_log == is_log
    places = [y for segment in loss.segments for _, y in segment]
    assert len(places) == len(values)
    assert all(0 <= place <= 1 for place in places)
    # Zero is below all else on a logarithmic axis too.
    assert sorted(places) == places
    assert len(loss.ticks) <= 4


def test_few_points_are_marked_and_of_many_those_that_stand_alone():
    for count, marked in ((5, 5), (100, 1)):
        loss = np.ones(count)
        loss[[0, 2]] = NAN
        chart = last_steps_layout.chart_of(steps_of(np.ones([count, 1]), loss=loss))
        assert len(chart.lines[0].dots) == (marked - 2 if count == 5 else marked)


def test_steps_that_were_not_written_are_marked_where_they_are():
    good = [True, False, False, True]
    chart = last_steps_layout.chart_of(steps_of(np.ones([4, 1]), good=good))
    assert [(it.x, it.width) for it in chart.unwritten] == [('25.00%', '50.00%')]


# The axis of steps.


def test_ticks_are_at_round_steps_and_at_the_last():
    ticks = step_ticks.ticks_of(range(9801, 10001))
    assert [label for _, label in ticks] == ['9801', '9850', '9900', '9950', '10000']
    assert ticks[-1][0] == pytest.approx(1 - 0.5 / 200)


def test_without_steps_columns_are_counted_back():
    labels = [label for _, label in step_ticks.ticks_of([None] * 101)]
    assert labels[-1] == '0' and '\N{MINUS SIGN}40' in labels


@pytest.mark.parametrize(
    'step',
    [
        list(range(90, 100)) + list(range(50, 95)),  # a rollback
        [7] * 30,  # nothing but steps that were not written
        [2**62 + n for n in range(200)],
        [-(2**62), 2**62],
        [0],
        [None, 3, None],
    ],
    ids=str,
)
@pytest.mark.parametrize('width', [step_ticks.NARROW, step_ticks.WIDE])
def test_labels_of_the_axis_leave_each_other_room(step, width):
    ticks = step_ticks.ticks_of(step, width)
    assert ticks and all(0 <= at <= 1 for at, _ in ticks)
    for (one, said), (other, label) in itertools.combinations(ticks, 2):
        assert abs(one - other) * width > 7 * (len(said) + len(label)) / 2


# The picture of the gradients.


def colors(norms, **kwargs):
    drawn = heat_map.heat_map_of(steps_of(norms, **kwargs))
    return drawn, drawn.pixels


def test_colours_are_by_the_median_of_each_row_and_not_by_its_size():
    norms = np.ones([9, 2]) * [1e-3, 1e6]
    norms[8] *= 1000
    drawn, shown = colors(norms)
    assert shown.shape == (2, 9, 3)
    np.testing.assert_array_equal(shown[0], shown[1])
    legend = heat_map.legend_pixels()[0]
    np.testing.assert_array_equal(shown[0, 0], legend[len(legend) // 2])
    np.testing.assert_array_equal(shown[0, 8], legend[-1])
    assert (drawn.below, drawn.above, drawn.is_beyond) == (1, 3, False)


def test_colours_get_darker_on_both_sides():
    legend = heat_map.legend_pixels()[0].astype(float) @ [0.3, 0.6, 0.1]
    middle = len(legend) // 2
    assert (np.diff(legend[: middle + 1]) > 0).all() and (np.diff(legend[middle:]) < 0).all()


def test_what_is_not_finite_has_its_own_colour_and_what_nobody_knows_none():
    said = history_of([[1.0, 1.0, 1.0]] * 4 + [[NAN, INF, 1.0]])
    said['gradient_norms'][2][2] = None
    drawn = heat_map.heat_map_of(last_steps.last_steps_of(said))
    bad = np.all(drawn.pixels[:, :, :3] == samples.BAD, axis=2)
    assert np.argwhere(bad).tolist() == [[0, 4], [1, 4]]
    assert np.argwhere(drawn.pixels[:, :, 3] == 0).tolist() == [[2, 2]]
    assert drawn.has_bad and drawn.has_unknown


def test_where_it_began_is_the_first_step_and_its_farthest_row():
    norms = np.ones([20, 4])
    norms[15:, 2] = 1e3
    norms[15:, 1] = 1e5
    norms[18:] = 1e9
    names = [('a/weights',), ('b/biases', 'b/beta', 'c/beta'), ('c/weights',), ('d/weights',)]
    drawn, _ = colors(norms, names=names)
    begin = drawn.begin
    assert (begin.column, begin.gradient.name, begin.others) == (15, 'b/biases', 1)
    assert begin.ratio == pytest.approx(5)
    assert [(it.name, it.others) for it in drawn.names if it.is_begin] == [('b/biases', 2)]
    said = last_steps_layout.caption_of(steps_of(norms, names=names), drawn)
    assert (
        'is b/biases and 2 more: at step 16 it is 1e5 times its median, and so is 1 more.' in said
    )


def test_what_befalls_all_gradients_at_once_begins_in_none():
    norms = np.ones([5, 3])
    norms[4] = NAN
    drawn, _ = colors(norms)
    assert not any(it.is_begin for it in drawn.names)
    assert (
        'All are out of bounds at once, not finite or above 100 times that, at step 5.'
        in last_steps_layout.caption_of(steps_of(norms), drawn)
    )


def test_it_begins_where_the_last_explosion_does_and_earlier_ones_are_told():
    norms = np.ones([60, 3])
    norms[[10, 20, 21], 0] = 1e4  # these were survived
    norms[50:, 1] = 1e3
    norms[53] = 1.0  # a step that is calm between others
    drawn, _ = colors(norms)
    assert (drawn.begin.column, drawn.begin.gradient.name) == (50, 'layer1/weights')
    said = last_steps_layout.caption_of(steps_of(norms), drawn)
    assert said.endswith('Before that 3 steps were out of bounds, and came back.')
    norms[50:] = 1.0
    drawn, _ = colors(norms)
    assert (drawn.begin.column, drawn.begin.earlier) == (10, 0)


def test_a_calm_history_begins_nowhere():
    norms = np.random.RandomState(0).lognormal(0, 0.5, [200, 30])
    drawn, _ = colors(norms)
    assert drawn.begin is None and (drawn.below, drawn.above) <= (2, 2)


def test_a_norm_of_zero_is_the_lowest_unless_most_are():
    norms = np.ones([9, 2])
    norms[8, 0] = 0
    norms[:, 1] = 0
    norms[8, 1] = 1e-9
    ratios = heat_map.ratios_of(steps_of(norms).norms)
    assert ratios[:8].tolist() == [[0.0, 0.0]] * 8
    assert ratios[8].tolist() == [-INF, INF]
    drawn, shown = colors(norms)
    legend = heat_map.legend_pixels()[0]
    np.testing.assert_array_equal(shown[:, 8], [legend[0], legend[-1]])
    assert 'is not zero, as it was' in last_steps_layout.caption_of(steps_of(norms), drawn)


@pytest.mark.parametrize('gradients, in_a_line', [(1, 1), (40, 1), (41, 2), (300, 8), (3005, 8)])
def test_every_gradient_has_a_name_beside_it_or_is_counted(gradients, in_a_line):
    norms = np.ones([6, gradients])
    norms[3, gradients - 1] = 1e4
    drawn, shown = colors(norms)
    assert drawn.rows_in_a_line == in_a_line
    assert len(drawn.names) <= 40
    assert len(drawn.names) == -(-shown.shape[0] // in_a_line)
    assert sum(1 + it.others for it in drawn.names) == gradients
    # Of rows that share a pixel the largest is seen, and it is the one that is named.
    legend = heat_map.legend_pixels()[0]
    np.testing.assert_array_equal(shown[-1, 3], legend[-1])
    assert drawn.names[-1][::2] == ('layer%d/weights' % (gradients - 1), True)


def test_a_long_name_keeps_its_end():
    name = 'net/' * 100 + 'block4/unit_3/weights'
    (said,) = heat_map.heat_map_of(steps_of(np.ones([2, 1]), names=[(name,)])).names
    assert said.name.startswith('\N{HORIZONTAL ELLIPSIS}') and said.name.endswith(name[-100:])
    assert len(said.name) < 130


# The loss out of the bundles.


def points(*tails):
    return [tail.tolist() for tail in tails]


def test_the_curve_goes_on_to_the_last_step_that_was_written():
    found = steps_of(np.ones([4, 1]), loss=[4, 3, 2, 1e9], good=[1, 1, 1, 0], step=[7, 8, 9, 9])
    curve = loss_tails.with_tails(None, [found])
    assert (curve.tag, curve.segments) == ('', [])
    assert points(*curve.tails) == [[[7, 4], [8, 3], [9, 2]]]
    summaries = Curve('loss', [np.array([[1.0, 5.0]])], 1, 0)
    both = loss_tails.with_tails(summaries, [found])
    assert both.segments == summaries.segments and points(*both.tails) == points(*curve.tails)


def test_steps_that_two_bundles_hold_are_drawn_once():
    first = steps_of(np.ones([3, 1]), loss=[5, 4, 3], step=[1, 2, 3])
    second = steps_of(np.ones([3, 1]), loss=[4, 3, 2], step=[2, 3, 4])
    curve = loss_tails.with_tails(None, [first, second, second])
    assert points(*curve.tails) == [[[1, 5], [2, 4], [3, 3]], [[3, 3], [4, 2]]]


def test_after_a_rollback_another_part_begins():
    found = steps_of(np.ones([4, 1]), loss=[4, 3, 4.5, 2], step=[7, 8, 7, 8])
    curve = loss_tails.with_tails(None, [found])
    assert points(*curve.tails) == [[[7, 4], [8, 3]], [[7, 4.5], [8, 2]]]


@pytest.mark.parametrize('loss', [None, [NAN] * 2, [INF, -INF]])
def test_a_history_without_a_finite_loss_is_no_curve(loss):
    assert loss_tails.with_tails(None, [steps_of(np.ones([2, 1]), loss=loss)]) is None


# The page.


@pytest.fixture(scope='module')
def sound(tmp_path_factory):
    with tf.Graph().as_default():
        return test_bundle.write(zoo.failed('a_feed'), tmp_path_factory.mktemp('sound'))


@pytest.fixture
def logdir(sound, tmp_path):
    """A log directory with one bundle and the record of its incident."""
    shutil.copytree(sound, str(tmp_path / 'slimguard' / 'incident-5'))
    record(
        tmp_path, line(step=5, action='raise', bundle='x/slimguard/incident-5', gradient_norm=7e9)
    )
    return tmp_path


def put(logdir, history):
    """Puts a history into the bundle, as a bundle has it."""

    def encoded(value):
        if isinstance(value, list):
            return [encoded(each) for each in value]
        is_odd = isinstance(value, float) and not math.isfinite(value)
        return (
            {'nan': 'NaN', 'inf': 'Infinity', '-inf': '-Infinity'}[str(value)] if is_odd else value
        )

    said = {key: encoded(value) for key, value in history.items()}
    path = str(logdir / 'slimguard' / 'incident-5')
    test_bundle.edit_json(path, lambda it: it.update(history=said))


def exploding(steps=200, gradients=300):
    norms = np.random.RandomState(0).lognormal(0, 0.3, [steps, gradients])
    norms[-20:, gradients // 2 :] *= 1e5
    norms[-3:] = NAN
    names = [('net/block%d/unit_3/weights' % n,) for n in range(gradients)]
    names[1] = ('conv1/biases',) + ('x',) * 14
    loss = np.linspace(3, 1, steps)
    loss[-1] = NAN
    good = [True] * (steps - 1) + [False]
    return history_of(norms, names, loss, good=good)


def image_of(seen):
    (heat,) = [a for a in seen.of('image') if a['width'] == '200']
    return pixels(base64.b64decode(heat['href'].partition(',')[2]))


def test_the_page_shows_the_lines_the_gradients_and_where_it_began(logdir):
    put(logdir, exploding(gradients=30))
    seen = see(logdir)
    assert harmless(seen)
    assert 'The last 200 steps' in seen.text
    assert len(seen.of('svg', class_='series')) == 3  # loss, norm, the axis
    assert len(seen.of('path', class_='curve')) == 4  # these, the loss curve, and its legend
    assert seen.of('rect', class_='is-bad') and seen.of('rect', class_='is-unwritten')
    shown = image_of(seen)
    assert shown.shape == (30, 200, 3)
    assert np.all(shown[:, -3:] == samples.BAD)
    assert 'net/block29/unit_3/weights' in seen.words
    assert 'conv1/biases' in seen.words and 'and 14 more' in seen.text
    assert 'The first one out of bounds' in seen.text and ': at step 181 it is' in seen.text
    assert len(seen.of('li', class_='begins')) == 1
    assert '10\N{SUPERSCRIPT FIVE}' in seen.text or '10\N{SUPERSCRIPT SIX}' in seen.text
    for image in seen.of('svg', role='img'):
        assert image['aria-label']


def test_a_large_history_fits_on_a_page(logdir):
    put(logdir, exploding())
    see(logdir, png=str(logdir / 'x.png'))
    assert os.path.getsize(str(logdir / 'slimguard' / 'report.html')) < 0.5e6
    assert pixels((logdir / 'x.png').read_bytes()).shape[0] < 6000


def test_what_fails_in_the_picture_is_named_in_the_page_and_in_the_png(logdir):
    put(logdir, exploding(gradients=3))
    see(logdir, png=str(logdir / 'x.png'))
    shown = pixels((logdir / 'x.png').read_bytes())[:, :, :3]
    assert np.count_nonzero(np.all(shown == samples.BAD, axis=2)) > 500


HOSTILE = '<img src=x onerror=alert(1)>"\'</title></style><script>alert(2)</script>&$\\frac$'
ODD = {
    'one step': history_of(np.ones([1, 2]), loss=[1.0]),
    'one step that is not finite': history_of([[NAN, INF]], loss=[NAN], good=[False]),
    'nothing finite': history_of(np.full([20, 3], NAN), loss=[INF] * 20, good=[False] * 20),
    'nothing known': dict(
        history_of(np.ones([3, 2])),
        step=[None] * 3,
        loss=[None] * 3,
        learning_rate=[None] * 3,
        gradient_norm=[None] * 3,
        gradient_norms=[[None, None]] * 3,
    ),
    'some known': dict(
        history_of(np.ones([3, 2])),
        step=[None, 4, None],
        loss=[None, 1.0, None],
        gradient_norms=[[None, 1.0], [1.0, None], [None, 'NaN']],
    ),
    'huge numbers': dict(
        history_of(np.ones([4, 2])),
        step=[0, 2**63 - 1, -(2**63) + 1, 5],
        loss=[1.7e308, -1.7e308, 2**62, 0],
        learning_rate=[1e300] * 4,
        gradient_norm=[1.7e308, 5e-324, 0, 1e-300],
        gradient_norms=[[1.7e308, 5e-324], [0, 0], [-1, 1], [1e308, 1e-308]],
    ),
    'zeros': history_of(np.zeros([5, 3]), loss=[0.0] * 5),
    'booleans': dict(history_of(np.ones([2, 1])), loss=[True, False], gradient_norms=[[True]] * 2),
    'a rollback': history_of(np.ones([6, 1]), loss=[3, 2, 1, 3, 2, 1], step=[1, 2, 3, 1, 2, 3]),
    'no gradients': history_of(np.ones([5, 0]), loss=[1, 2, 3, 4, 5]),
    'many gradients': history_of(np.ones([2, 5000]), [('a/' * 500 + str(n),) for n in range(5000)]),
    'many steps': history_of(np.ones([3000, 2]), loss=np.ones(3000)),
    'hostile names': history_of(np.ones([2, 2]), [(HOSTILE, HOSTILE), ('\u202e\x00\ud800',)]),
}


@pytest.mark.parametrize('name', ODD)
def test_odd_histories_make_a_page_and_a_picture(logdir, name):
    put(logdir, ODD[name])
    seen = see(logdir, png=str(logdir / 'x.png'))
    assert harmless(seen)
    assert not seen.of('p', class_='broken')
    assert len(seen.of('article')) == 1
    assert seen.of('figure', class_='steps')
    text = (logdir / 'slimguard' / 'report.html').read_text(encoding='utf-8')
    assert len(text) < 0.6e6
    for said in re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy|d|width|height)="([^"]*)"', text):
        assert not re.search('nan|inf|None', said)
    if name == 'hostile names':
        assert HOSTILE in seen.text and '\\u202e\\x00' in seen.text
    assert pixels((logdir / 'x.png').read_bytes()).shape[1] == 1200


def test_a_bundle_of_an_earlier_version_has_no_history_and_a_page(logdir):
    seen = see(logdir, png=str(logdir / 'x.png'))
    assert not seen.of('figure', class_='steps') and len(seen.of('article')) == 1


def test_the_loss_is_on_the_curve_where_the_script_writes_no_summary(logdir):
    put(logdir, history_of(np.ones([5, 2]), loss=[3, 2, 1, 0.5, NAN], good=[1, 1, 1, 1, 0]))
    seen = see(logdir)
    assert 'Only the last steps before incidents are known' in seen.text
    assert 'No loss curve' not in seen.text
    (chart,) = seen.of('svg', class_='chart')
    assert len(seen.of('path', class_='curve')) == 4
    assert len(seen.of('circle', class_='dot')) == 4 + 4 + 5


def test_the_norm_of_the_gradients_is_told_in_the_diagnosis_and_in_the_table(tmp_path):
    record(tmp_path, line(action='stop', gradient_norm=3.1e9, gradient_norm_ratio=2.44e6))
    seen = see(tmp_path)
    said = '3.1e+09, 2.4e6 times the median of the last good steps'
    assert seen.words.count(said) == 1 and seen.words.count('gradient norm ' + said) == 1
    record(tmp_path, line(action='stop', gradient_norm='nan', gradient_norm_ratio='nan'))
    assert 'gradient norm NaN' in see(tmp_path).words


def test_the_page_is_in_the_order_of_what_matters(logdir):
    put(logdir, exploding(20, 3))
    text = (see(logdir), (logdir / 'slimguard' / 'report.html').read_text())[1]
    order = [
        text.index(said)
        for said in (
            'What ended the training',
            '<dl>',
            'The last 20 steps',
            'id="loss"',
            '<table class="incidents"',
        )
    ]
    assert order == sorted(order)


# In a browser.

# Runs in a copy of the page: the page itself allows no script.
LAID_OUT = """
<script>
addEventListener('load', () => {
  const found = [];
  const box = it => it.getBoundingClientRect();
  const shown = it => box(it).width > 1 && box(it).height > 1 &&
    getComputedStyle(it).visibility == 'visible' && it.checkVisibility();
  const texts = [...document.querySelectorAll(
    'text, .names li, .name, .legend li, h1, h2, h3, h4, p, dt, dd, figcaption, ' +
    'summary, th[scope=row] span, .why span, .when, .kinds td, .mark path')].filter(shown);
  for (const [i, one] of texts.entries()) {
    if (box(one).right > innerWidth + .5 || box(one).left < -.5)
      found.push('beyond the window: ' + one.textContent);
    for (const other of texts.slice(i + 1)) {
      if (one.contains(other) || other.contains(one)) continue;
      const [a, b] = [box(one), box(other)];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 2)
        found.push('on one another: ' + one.textContent + ' | ' + other.textContent);
    }
  }
  const names = [...document.querySelectorAll('.names .whole')].filter(shown);
  for (const name of names)
    if (box(name.firstChild).right > box(name).right + 1 ||
        box(name).right > box(name.parentNode).right + 1)
      found.push('without its end: ' + name.textContent);
  const said = document.createElement('output');
  said.textContent = JSON.stringify([texts.length, names.length, found]);
  document.body.append(said);
});
</script>
"""


@in_a_browser
@pytest.mark.parametrize('width', [1280, 390])
@pytest.mark.parametrize('incidents', [0, 1, 500])
def test_nothing_overlaps_and_long_names_keep_their_ends(logdir, tmp_path, incidents, width):
    kinds = ('gradient norm 3.1e9 is 2.4e6 times the median %d', 'not finite: %dth/weights')
    lines = [
        line(step=n * 100, action=['skip', 'rollback'][n % 2], reason=kinds[n % 2] % n)
        for n in range(incidents - 1)
    ]
    if incidents:
        put(logdir, exploding())
        bundle = 'x/slimguard/incident-5'
        ended = line(step=10**6 + 5, action='raise', bundle=bundle, gradient_norm=7e9)
        record(logdir, *lines, ended)
    else:
        shutil.rmtree(str(logdir / 'slimguard' / 'incident-5'))
        (logdir / 'slimguard' / 'incidents.jsonl').write_text('')
    see(logdir)
    text = (logdir / 'slimguard' / 'report.html').read_text(encoding='utf-8')
    copy = tmp_path / 'copy.html'
    # The browser makes no window that is as narrow as a phone.
    copy.write_text(re.sub('<meta http-equiv[^>]*>', '', text) + LAID_OUT, encoding='utf-8')
    frame = tmp_path / 'frame.html'
    frame.write_text(
        '<iframe src="copy.html" width="%d" height="9000" frameborder="0"></iframe>'
        % width
        + '<script>addEventListener("load", () => { document.body.append('
        'document.querySelector("iframe").contentDocument.querySelector("output").textContent) })'
        '</script>'
    )
    run, _ = browse(tmp_path, frame, '--dump-dom', '--allow-file-access-from-files')
    texts, names, wrong = json.loads(re.search(r'\[\d+,\d+,\[.*\]\]', run.stdout).group())
    assert not wrong
    assert texts > (30 if incidents else 3)
    assert names == (38 if incidents else 0)
