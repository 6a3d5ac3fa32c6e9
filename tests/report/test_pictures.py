"""Pictures: samples that look like images, PNG files, layers, and scales."""

import io
import math
import random
import re
import struct
import sys

import numpy as np
import pytest
import tensorflow as tf
from matplotlib import image

from slimguard.report import layer_ranges, png_files, range_chart_layout, samples, scales
from tests.helpers.children import forked_python

tf1 = tf.compat.v1


@pytest.mark.parametrize('shape', [(5, 3, 3), (1, 1, 4), (130, 7, 3)])
def test_a_png_holds_its_pixels(shape):
    pixels = np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)
    shown = image.imread(io.BytesIO(png_files.png_files([pixels])[0]))
    np.testing.assert_array_equal((shown * 255).round(), pixels)


IN_EAGER_MODE = """
import sys
import numpy as np
import tensorflow as tf
from slimguard.report import png_files

if tf.__version__.startswith('1.'):
    tf.compat.v1.enable_eager_execution()
pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
(file,) = png_files.png_files([pixels])
assert tf.executing_eagerly()
assert np.array_equal(tf.image.decode_png(file).numpy(), pixels)
"""


def test_a_png_is_made_in_eager_mode_too():
    run = forked_python('-c', IN_EAGER_MODE)
    assert run.returncode == 0, run.stderr


def test_a_png_costs_the_graph_and_the_session_of_the_user_nothing():
    before = tf1.get_default_graph()
    with tf1.Session() as session:
        pixels = np.zeros([2, 3, 4], np.uint8)
        first, second = png_files.png_files([pixels, pixels + 1])
        assert tf1.get_default_graph() is before and tf1.get_default_session() is session
        assert before.get_operations() == []
        for file, expected in ((first, pixels), (second, pixels + 1)):
            np.testing.assert_array_equal(session.run(tf.image.decode_png(file)), expected)


@pytest.mark.parametrize(
    'shape, dtype, seen_as',
    [
        ([6, 28, 28, 1], np.float32, (6, 28, 28, 1)),
        ([6, 28, 20, 3], np.uint8, (6, 28, 20, 3)),
        ([6, 4, 28, 20], np.float16, (6, 28, 20, 4)),
        ([6, 28, 28, 2], np.float32, None),
        ([6, 28, 28, 64], np.float32, None),
        ([6, 1, 1, 3], np.float32, None),
        ([6, 28, 28], np.float32, None),
        ([0, 28, 28, 3], np.float32, None),
        ([6, 28, 28, 3], np.complex64, None),
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
    found = samples.sheets(value, suspects=[2], rows=6)
    assert [[s.row for s in sheet.samples if s.suspect] for sheet in found] == [[2], []]


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


@pytest.mark.parametrize('ends', [(-1.79e308, 1.79e308), (1.79e308, 1.79e308), (0.0, 1e-320)])
def test_values_at_the_ends_of_floats_are_shown_too(ends):
    value = np.full([1, 8, 8, 1], ends[0])
    value[0, 2, 2] = ends[1]
    (sheet,) = samples.sheets({'x:0': value})
    shown = sheet.samples[0].pixels[..., 0]
    assert shown[2, 2] >= shown[0, 0]
    assert (shown[2, 2] > shown[0, 0]) == (ends[1] > ends[0])


@pytest.mark.parametrize('channels', [1, 3, 4])
def test_samples_keep_to_the_room_they_are_given_and_bad_ones_come_first(channels):
    value = np.random.RandomState(0).uniform(0, 1, [40, 100, 100, channels])
    value[33] = np.nan
    found = samples.sheets({'a:0': value, 'b:0': value}, room=10**6)
    shown = [it.pixels for sheet in found for it in sheet.samples]
    taken = [len(file) * 4 / 3 for file in png_files.png_files(shown)]
    assert 0.2e6 < sum(taken) <= 10**6
    assert all(33 in [it.row for it in sheet.samples] for sheet in found)
    (sheet,) = samples.sheets({'a:0': value}, room=1)
    assert [it.row for it in sheet.samples] == [33]


def test_a_batch_of_very_many_samples_is_counted_as_a_whole():
    value = np.zeros([200000, 4, 4, 1], np.float32)
    value[[7, 199999], 1, 2] = np.nan
    (sheet,) = samples.sheets({'x:0': value})
    assert [(it.row, it.bad) for it in sheet.samples if it.bad] == [(7, 1), (199999, 1)]


def test_one_wild_sample_leaves_the_others_visible_and_is_named():
    value = batch()
    value[2] = 1e25
    (sheet,) = samples.sheets({'x:0': value})
    assert (sheet.black, sheet.white) == (0.0, 1.0)
    assert [s.wild for s in sheet.samples] == [None, None, pytest.approx(1e25), None]


# Layers.


def row(op, phase='forward', least=0.0, largest=1.0, nan=0, inf=0, type_='Mul'):
    found = {'min': least, 'max': largest, 'nan': nan, 'inf': inf}
    return {'op': op, 'type': type_, 'phase': phase, 'tensor': op + ':0', 'range': found}


def test_the_tensors_of_a_layer_are_put_together_in_each_pass():
    rows = [
        row('slimguard/gate/max_loss', 'input', inf=1),
        row('images', 'input'),
        row('fc/weights', type_='ReadVariableOp'),  # read at any time
        row('conv1/Conv2D', least=-2.0),
        row('fc/MatMul', least=None, largest=None, nan=3),
        row('conv1/Relu', largest=5.0, inf=2),
        row('gradients/conv1/Conv2D_grad/Conv2DBackpropInput', 'backward', -7.0),
        row('gradients/AddN_7', 'backward'),
        row('conv1/weights', 'forward'),
        row('conv1/weights/Momentum', 'update'),
    ]
    found = layer_ranges.layers_of(rows, 'conv1/Relu:0')
    assert [(x.phase, x.name, x.tensors) for x in found] == [
        ('input', 'images', 1),
        ('forward', 'conv1', 3),
        ('forward', 'fc', 2),
        ('backward', 'conv1', 2),
        ('update', 'conv1', 1),
    ]
    assert found[1][3:] == (-2.0, 5.0, 0, 2, True)
    assert found[2][3:] == (0.0, 1.0, 3, 0, False)
    assert found[3][3:5] == (-7.0, 1.0)


@pytest.mark.parametrize('nan, said', [(0, 'out of bounds here'), (1, 'non-finite from here on')])
def test_a_loss_above_its_limit_is_not_said_to_be_non_finite(nan, said):
    found = layer_ranges.layers_of([row('fc/MatMul'), row('loss/Mean', nan=nan)], 'loss/Mean:0')
    chart = range_chart_layout.chart_of(found)
    assert chart.begins == said and [it.is_begin for it in chart.rows] == [False, True]
    assert ('not finite' in chart.caption) == bool(nan)


@pytest.mark.parametrize('name', ['net/block%d/unit/conv/Conv2D', 'op_%d'])
def test_a_large_graph_fits_and_what_is_at_fault_stays_alone(name):
    rows = [row(name % number) for number in range(1000)]
    culprit = name % 500
    found = layer_ranges.layers_of(rows, culprit + ':0')
    assert len(found) <= 36 + 2
    assert sum(x.tensors for x in found) == 1000
    (begins,) = [x for x in found if x.begins]
    if name.startswith('op'):
        assert (begins.name, begins.tensors) == (culprit, 1)


def test_each_pass_is_as_deep_as_it_can_be():
    names = ['net/block%d/unit%d/conv' % (b, u) for b in range(5) for u in range(6)]
    rows = [row('%s/op%d' % (name, n)) for name in names for n in range(2)]
    rows += [row('gradients/%s/op_grad/Mul' % name, 'backward') for name in names]
    found = layer_ranges.layers_of(rows, None)
    forward = [x.name for x in found if x.phase == 'forward']
    backward = [x.name for x in found if x.phase == 'backward']
    assert forward == names
    assert backward == ['net/block%d' % b for b in range(5)]


@pytest.mark.parametrize(
    'op, phase, scope',
    [
        ('a/b/Conv2D', 'forward', 'a/b'),
        ('Mean', 'forward', 'Mean'),
        ('gradients_1/a/b/Conv2D_grad/Mul', 'backward', 'a/b'),
        ('tower/gradients/a/Relu_grad/ReluGrad', 'backward', 'a'),
        ('a/BatchNorm/AssignMovingAvg_1/sub', 'update', 'a/BatchNorm'),
    ],
)
def test_the_scope_of_an_op(op, phase, scope):
    assert '/'.join(layer_ranges.scope_of(op, phase)) == scope


# Scales.


@pytest.mark.parametrize(
    'values',
    [[1.0], [0.0], [0, 1], [-3.5, 7.25], [1e-9, 1e9], [5, 5 + 1e-14], [-1.7e308, 1.7e308], [1e15]],
)
@pytest.mark.parametrize('whole', [False, True])
def test_a_scale_holds_its_values_and_its_ticks(values, whole):
    scale = scales.scale_of(values, whole=whole)
    for value in values:
        assert 0 <= scale(value) <= 1
    assert scale(min(values)) <= scale(max(values))
    assert scale.ticks or whole
    assert all(-1e-9 <= scale(value) <= 1 + 1e-9 for value, _ in scale.ticks)
    assert len(scale.ticks) <= 20
    labels = [label for _, label in scale.ticks]
    assert len(set(labels)) == len(labels)


LARGEST = sys.float_info.max
ENDS = [0.0, 5e-324, 1e-323, 2.2e-308, 1e-280, 1.0, 1e15, 2.0**63, 1e308, LARGEST]


def extreme(pick):
    """A finite float, of any size and of special ones."""
    how = pick.random()
    if how < 0.4:
        return pick.choice(ENDS) * pick.choice([1, -1])
    if how < 0.6:
        return round(pick.uniform(-1000, 1000), pick.randint(0, 5))
    (value,) = struct.unpack('<d', struct.pack('<Q', pick.getrandbits(64)))
    return value if math.isfinite(value) else LARGEST


def values_of(pick):
    values = [extreme(pick) for _ in range(pick.randint(1, 3))]
    if pick.random() < 0.3:
        values = [values[0], values[0] * (1 - pick.choice([1e-16, 1e-12, 1e-9]))]
    return sorted(map(abs, values) if pick.random() < 0.4 else values)


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize(
    'kind',
    [{}, {'whole': True}, {'kind': 'linear'}, {'kind': 'linear', 'whole': True, 'padded': False}],
    ids=str,
)
def test_a_scale_holds_for_all_finite_floats(seed, kind):
    pick = random.Random(seed)
    for _ in range(800):
        values = values_of(pick)
        scale = scales.scale_of(values, **kind)
        places = [scale(value) for value in values]
        assert all(0 <= place <= 1 for place in places), values
        assert places == sorted(places), values
        # A logarithm does not tell neighbours apart.
        assert scale.is_log or (places[0] < places[-1]) == (values[0] < values[-1]), values
        assert scale.ticks or kind.get('whole'), values
        require_good_ticks(scale, values)


@pytest.mark.parametrize('seed', range(2))
def test_magnitudes_hold_for_all_finite_floats(seed):
    pick = random.Random(seed)
    for _ in range(800):
        values = values_of(pick)
        scale = scales.magnitudes(values)
        places = [scale(value) for value in values]
        assert all(0 <= place <= 1 for place in places), values
        assert places == sorted(places), values
        require_good_ticks(scale, values)


def require_good_ticks(scale, values):
    ticks, labels = [value for value, _ in scale.ticks], [label for _, label in scale.ticks]
    places = [scale(tick) for tick in ticks]
    assert all(map(math.isfinite, ticks)), values
    assert ticks == sorted(set(ticks)) and places == sorted(set(places)), values
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in places), values
    assert len(set(labels)) == len(labels), values
    for tick, label in scale.ticks:
        assert number_of(label) == pytest.approx(tick, rel=0.06), (tick, label)


SUPERSCRIPTS = str.maketrans('⁰¹²³⁴⁵⁶⁷⁸⁹⁻−', '0123456789--')


@pytest.mark.parametrize(
    'values, labels',
    [
        ([12000000, 12000399], ['12000000', '12000100', '12000200', '12000300']),
        ([0, 4e7], ['0', '10⁷', '2×10⁷', '3×10⁷', '4×10⁷']),
        ([0, 3], ['0', '1', '2', '3']),
        ([7], ['7']),
    ],
)
def test_steps_are_told_apart(values, labels):
    scale = scales.scale_of(values, 'linear', whole=True, padded=False)
    assert [label for _, label in scale.ticks] == labels


def number_of(label):
    """The number that a label is read as."""
    found = re.match('(−?)([\\d.]*)×?(10([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+))?$', label)
    sign, mantissa, power, exponent = found.groups()
    if power and mantissa == '':
        mantissa = '1'
    exponent = (exponent or '0').translate(SUPERSCRIPTS)
    return float('%s%se%s' % (sign.translate(SUPERSCRIPTS), mantissa, exponent))


def test_a_loss_over_orders_of_magnitude_has_a_logarithmic_axis():
    assert scales.scale_of([0.01, 5.0]).is_log
    assert not scales.scale_of([0.1, 5.0]).is_log
    assert not scales.scale_of([0.0, 5e9]).is_log


@pytest.mark.parametrize('values', [[], [0.0], [1.0, -1.0], [1e-300, 1.7e308], [-1e-45], [1e10]])
def test_magnitudes_go_from_minus_to_plus_through_0(values):
    scale = scales.magnitudes([*values, None, math.inf])
    assert scale(0) == 0.5
    for value in values:
        assert 0 <= scale(value) <= 1
        assert scale(-value) == pytest.approx(1 - scale(value))
        assert (scale(value) - 0.5) * value >= 0
    assert all(0 <= scale(value) <= 1 for value, _ in scale.ticks)
    assert ('0' in [label for _, label in scale.ticks]) and len(scale.ticks) >= 3
