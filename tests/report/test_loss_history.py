"""The curve: the loss is found among the summaries, and keeps its peaks when it is thinned out."""

import os

import numpy as np
import pytest
import tensorflow as tf

from slimguard.report import loss_history

tf1 = tf.compat.v1


def write(logdir, points, tag='total_loss', suffix='.1'):
    """Writes an event file with (step, value) points; returns its path."""
    before = set(logdir.glob('*'))
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(str(logdir), filename_suffix=suffix)
        for step, value in points:
            writer.add_summary(tf1.Summary(value=[value_of(tag, value)]), step)
        writer.close()
    (path,) = set(logdir.glob('*')) - before
    return path


def value_of(tag, value):
    if isinstance(value, float):
        return tf1.Summary.Value(tag=tag, simple_value=value)
    return tf1.Summary.Value(tag=tag, tensor=tf1.make_tensor_proto(value))


def read(logdir):
    found, troubles = loss_history.read(str(logdir))
    assert troubles == []
    return found


def test_a_scalar_is_read_in_whichever_form_it_was_written(tmp_path):
    write(tmp_path, [(1, 0.5), (2, np.float32(0.25)), (3, np.array(0.125)), (4, b'no number')])
    write(tmp_path, [(5, [1.0, 2.0])], suffix='.2')
    found = read(tmp_path)
    assert found.tag == 'total_loss'
    assert [s.tolist() for s in found.segments] == [[[1, 0.5], [2, 0.25], [3, 0.125]]]


@pytest.mark.parametrize(
    'tags, loss',
    [
        (['accuracy', 'losses/clone_0/softmax', 'losses/total_loss'], 'losses/total_loss'),
        (['loss', 'regularization_loss', 'loss_scale'], 'loss'),
        (['TotalLoss_1', 'aux_loss'], 'TotalLoss_1'),
        (['lossless', 'glossary', 'learning_rate/loss', 'loss_weight'], None),
    ],
)
def test_the_loss_is_told_by_its_tag(tmp_path, tags, loss):
    for number, tag in enumerate(tags):
        write(tmp_path, [(1, 0.5)], tag, suffix='.%d' % number)
    found = read(tmp_path)
    assert (found and found.tag) == loss


def test_a_rollback_and_a_restart_begin_new_segments(tmp_path):
    write(tmp_path, [(1, 4.0), (2, 3.0), (3, 2.0), (2, 2.5), (3, 1.5)], suffix='.1')
    write(tmp_path, [(3, 1.4), (4, 1.3)], suffix='.2')
    found = read(tmp_path)
    assert [s[:, 0].tolist() for s in found.segments] == [[1, 2, 3], [2, 3, 3, 4]]
    assert found.begins == [2, 3]  # marked in the chart


def test_what_is_not_finite_is_counted_and_left_out(tmp_path):
    write(tmp_path, [(1, 4.0), (2, float('nan')), (3, float('inf')), (4, 1.0)])
    found = read(tmp_path)
    assert (found.points, found.bad) == (4, 2)
    assert [s.tolist() for s in found.segments] == [[[1, 4], [4, 1]]]


def test_nothing_but_nan_is_a_curve_without_segments(tmp_path):
    write(tmp_path, [(1, float('nan'))])
    assert read(tmp_path).segments == []


@pytest.mark.parametrize('damage', ['truncated', 'noise', 'empty'])
def test_a_damaged_file_keeps_what_came_before(tmp_path, damage):
    path = write(tmp_path, [(step, 1.0) for step in range(10)])
    content = path.read_bytes()
    path.write_bytes({'truncated': content[:-3], 'noise': b'\xff' * 100, 'empty': b''}[damage])
    write(tmp_path, [(20, 2.0)], suffix='.2')
    found, troubles = loss_history.read(str(tmp_path))
    assert len(troubles) == (damage != 'empty')
    assert all(path.name + ' was read only in part: ' in said for said in troubles)
    steps = [step for s in found.segments for step in s[:, 0]]
    assert steps == ([*range(9), 20] if damage == 'truncated' else [20])


@pytest.mark.parametrize('make', [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
def test_what_only_bears_the_name_of_an_event_file_is_not_opened(tmp_path, make):
    write(tmp_path, [(1, 2.0)])
    make(str(tmp_path / 'events.out.tfevents.x'))
    found, troubles = loss_history.read(str(tmp_path))
    assert found.points == 1
    assert troubles == ['events.out.tfevents.x was not read: it is no regular file.']


def test_no_event_files_are_no_curve(tmp_path):
    assert loss_history.read(str(tmp_path)) == (None, [])


def test_a_long_curve_keeps_its_peaks(tmp_path):
    steps = np.arange(300000.0)
    points = np.stack([steps, np.sin(steps / 1e4)], axis=1)
    points[123456, 1], points[234567, 1] = 9.0, -9.0
    thin = loss_history._thin_out(points, 2000)
    assert len(thin) <= 2002
    assert (np.diff(thin[:, 0]) > 0).all()
    kept = {tuple(point) for point in thin}
    for point in (points[0], points[123456], points[234567], points[-1]):
        assert tuple(point) in kept


def test_a_loss_that_jumps_back_all_the_time_stays_small():
    points = np.stack([np.tile([2.0, 1.0], 50000), np.arange(100000.0)], axis=1)
    found = loss_history.curve_of('loss', [points])
    assert len(found.segments) == 100
