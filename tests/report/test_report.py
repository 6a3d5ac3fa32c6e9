"""The report: shows what was recorded, trusts none of it, and loads nothing."""

import json
import os
import re
import shutil
import stat
import threading
import webbrowser
import zlib

import jinja2
import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import __main__, gate
from slimguard.diagnosis import bundle
from slimguard.incidents import record_file
from slimguard.report import page, report, report_data, samples
from tests.diagnosis import test_bundle
from tests.helpers import bundles, zoo
from tests.helpers.children import forked_python
from tests.report import test_loss_history
from tests.report.pages import (
    HOSTILE,
    Seen,
    browse,
    harmless,
    in_a_browser,
    line,
    page_of,
    pixels,
    record,
    rows_of,
    see,
)
from tests.report.test_last_steps import history_of

tf1 = tf.compat.v1

BAD = (4, 2, 3, 0)  # the row and the pixel
PICTURES = 'IteratorGetNext:0'  # what the training of `logdir` draws


def images(bad):
    for draw in range(100):
        batch = np.random.RandomState(draw).uniform(0, 1, [6, 8, 8, 1]).astype(np.float32)
        if draw in bad:
            batch[BAD] = np.nan
        yield batch


def train(logdir):
    """A training with three bad batches of images: one skipped, one rolled back, one raised."""
    dataset = tf1.data.Dataset.from_generator(lambda: images({5, 9, 14}), tf.float32, [6, 8, 8, 1])
    x = tf1.data.make_initializable_iterator(dataset)
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, x.initializer)
    kernel = tf1.get_variable('conv/weights', [3, 3, 1, 2])
    with tf.name_scope('conv'):
        net = tf.nn.relu(tf.nn.conv2d(x.get_next(), kernel, strides=[1, 1, 1, 1], padding='SAME'))
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(net, axis=[1, 2, 3]) - 1.0))
    summary = tf1.summary.scalar('total_loss', loss)
    step = tf1.train.get_or_create_global_step()
    optimizer = tf1.train.GradientDescentOptimizer(1e-5)
    train_op = gate.guard(optimizer.minimize(loss, global_step=step), loss)
    actions = iter(['skip', 'rollback', 'raise'])
    hook = slimguard.NanLossHook(loss, on_nan=lambda incident: next(actions), logdir=logdir)
    summaries = tf1.train.SummarySaverHook(save_steps=1, output_dir=logdir, summary_op=summary)
    with pytest.raises(slimguard.NanLossError):
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=logdir,
            save_checkpoint_steps=3,
            hooks=[hook, summaries],
        ) as session:
            while True:
                session.run(train_op)
    # The process goes on, and so does TensorFlow's own writer of event files.
    tf1.summary.FileWriterCache.get(logdir).close()
    tf1.summary.FileWriterCache.clear()


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The log directory of a training; not to be changed."""
    logdir = tmp_path_factory.mktemp('digits')
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        train(str(logdir))
    return logdir


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the log directory `trained`, to spoil."""
    shutil.copytree(str(trained), str(tmp_path / 'copy'))
    return tmp_path / 'copy'


def test_it_shows_the_curve_the_incidents_the_diagnosis_the_ranges_and_the_samples(copy):
    seen = see(copy, png=str(copy / 'x.png'))
    assert harmless(seen)
    assert '3 incidents: 1 raised an error, 1 rolled back, 1 skipped.' in seen.text
    count = seen.text.count('bad data: 1 NaN among 384 values, in row 4')
    assert count == 1 + 2 + 3 + 6  # the heading, lines, rows, marks
    assert 'test_report.py:' in seen.text
    assert tf.__version__ in seen.text and 'copy' in seen.text
    # One kind: a card with its ranges, and two lines to open. A chart is there for desk and phone.
    assert (len(seen.of('article')), len(seen.of('details'))) == (3, 1 + 2)
    assert seen.text.count('it began here') == 1
    assert seen.text.count('What to do') == 1
    assert len(seen.of('svg', class_='wide')) == len(seen.of('svg', class_='narrow')) == 1 + 2 + 2
    assert all(svg['aria-label'] for svg in seen.of('svg'))
    shown = pixels((copy / 'x.png').read_bytes())[:, :, :3]
    for color in (samples.BAD, (31, 111, 196), (200, 16, 46), (51, 65, 78)):
        assert np.count_nonzero(np.all(shown == color, axis=2)) > 20


@pytest.mark.full
def test_each_incident_leads_to_its_card(copy):
    seen = see(copy)
    targets = {a['id'] for _, a in seen.elements if 'id' in a}
    links = [a['href'] for a in seen.of('a')]
    # Two marks, as each chart is there twice, and a row.
    assert sorted(links) == sorted(['#step-5', '#step-8', '#step-10'] * 3)
    assert all(link[1:] in targets for link in links)


def links_of(logdir, **changes):
    """The rows of the table by the bundles they lead to; `changes` are made in the record."""
    path = logdir / 'slimguard' / 'incidents.jsonl'
    lines = [json.loads(said) for said in path.read_text().splitlines()]
    for said in lines:
        said.update(changes)
    path.write_text('\n'.join(map(json.dumps, lines)))
    see(logdir)
    rows = re.findall('<tr id="(row-[0-9]+)">(.*?)</tr>', page_of(logdir), re.DOTALL)
    return {link: row for row, said in rows for link in re.findall('<a href="#(.*?)"', said)}


@pytest.mark.full
def test_a_bundle_is_told_by_its_name_and_not_by_a_time(copy):
    linked = {'step-5': 'row-1', 'step-8': 'row-2', 'step-10': 'row-3'}
    assert links_of(copy, time=1e9) == linked
    # Of bundles with one name, all but the last were removed.
    assert links_of(copy, bundle='C:\\logs\\slimguard\\step-8\\') == {'step-8': 'row-3'}
    for none in (None, '/', 'step-7'):
        assert links_of(copy, bundle=none) == {}


@pytest.mark.parametrize('shape, rows', [([6], [1, 2]), ([7], []), ([], [])])
def test_samples_that_fail_later_on_are_framed_where_the_rows_are_theirs(copy, shape, rows):
    def in_the_forward_pass(said):
        said['diagnosis'].update(phase='forward', op_type='Log')
        said['diagnosis']['non_finite']['rows'] = [1, 2]
        said['diagnosis']['output']['shape'] = shape

    test_bundle.edit_json(bundle.paths(str(copy))[0], in_the_forward_pass)
    found = report_data.gather(str(copy)).incidents[0].opened
    assert [it.row for it in found.sheets[0].samples if it.suspect] == rows


def spoil(copy, change):
    """Changes incident.json of each bundle, and each line of the record."""
    for path in bundle.paths(str(copy)):
        test_bundle.edit_json(path, change)
    record = copy / 'slimguard' / 'incidents.jsonl'
    lines = [json.loads(said) for said in record.read_text().splitlines()]
    for said in lines:
        said.update(action=HOSTILE, reason=HOSTILE, restored=HOSTILE, process=HOSTILE)
        said.update(diagnosis=told_of(HOSTILE), advice=HOSTILE)
    record.write_text('\n'.join(map(json.dumps, lines)))


def told_of(words):
    """The text of a diagnosis with these words in each line."""
    forms = ('in the input: %s', '%s (x)', 'x.py:3, in f: %s', 'input x: %s', 'output: %s', '%s')
    return '\n  '.join(form % words for form in forms)


def hostile_words(said):
    said['incident'].update(reason=HOSTILE, action=HOSTILE)
    said['versions'] = {HOSTILE: HOSTILE}
    said['diagnosis'].update(
        phase=HOSTILE,
        tensor=HOSTILE,
        op_type=HOSTILE,
    )
    for row in said['diagnosis']['ranges']:
        row.update(op=HOSTILE, type=HOSTILE, tensor=HOSTILE)
    if PICTURES in said['dtypes']:
        said['dtypes'][HOSTILE] = said['dtypes'].pop(PICTURES)
        said['step']['sources'][HOSTILE] = said['step']['sources'][PICTURES]


def rename_pictures(path):
    """Gives the pictures in a bundle's arrays the name that `hostile_words` says they have."""
    with np.load(os.path.join(path, 'drawn.npz')) as drawn:
        values = {HOSTILE if name == PICTURES else name: drawn[name] for name in drawn.files}
    np.savez(os.path.join(path, 'drawn.npz'), **values)


def _in_a_name(text):
    # Without characters that are special in patterns: TensorFlow takes names of files for patterns.
    return re.sub(r'[/\\\\]', '', text)


def test_everything_from_the_run_is_escaped(copy, tmp_path):
    spoil(copy, hostile_words)
    for path in bundle.paths(str(copy)):
        rename_pictures(path)
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(str(copy), filename_suffix='.' + _in_a_name(HOSTILE))
        for step in range(100):
            value = tf1.Summary.Value(tag='total_loss ' + HOSTILE, simple_value=1.0)
            writer.add_summary(tf1.Summary(value=[value]), step)
        writer.close()
    named = tmp_path / _in_a_name(HOSTILE)
    os.rename(str(copy), str(named))
    seen = see(named, png=str(tmp_path / 'x.png'))
    assert harmless(seen)
    # All of it is there, as text.
    assert seen.text.count(HOSTILE) > 30
    assert named.name in seen.text
    assert seen.text.count('total_loss ' + HOSTILE[:20]) == 2
    assert len(seen.of('article')) == 3
    assert pixels((tmp_path / 'x.png').read_bytes()).shape[1] == 1280


@pytest.mark.parametrize(
    'said, shown',
    [
        ('a\u202eb', 'a\\u202eb'),  # would turn around what follows
        ('a\u200bb\x00\x1b', 'a\\u200bb\\x00\\x1b'),
        ('\ud800', '\\ud800'),
        ('größe\t1 < 2', 'größe\t1 &lt; 2'),
        ('\'"', '&#39;&#34;'),
    ],
)
def test_what_cannot_be_seen_is_written_out(said, shown):
    template = page.environment().from_string('<p title="{{ said }}">{{ said }}</p>')
    assert template.render(said=said) == '<p title="%s">%s</p>' % (shown, shown)


def test_a_name_that_a_template_has_no_value_for_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match='is undefined'):
        page.environment().from_string('<p>{{ nowhere }}</p>').render()


WRONG = {
    'ranges of words': test_bundle.says('diagnosis', 'ranges', value=['x', 'y']),
    'a range of words': test_bundle.says('diagnosis', 'ranges', -1, 'range', 'min', value='x'),
    'a diagnosis of nothing': test_bundle.says('diagnosis', value={'phase': 'input'}),
}


@pytest.mark.full
@pytest.mark.parametrize('name', WRONG)
def test_a_damaged_bundle_is_one_line_and_not_the_end(sound_and_not, name):
    logdir, path = sound_and_not
    WRONG[name](path)
    seen = see(logdir)
    assert harmless(seen)
    assert len(re.findall('<p class="quiet">step-1 cannot be read: ', page_of(logdir))) == 1
    assert len(seen.of('article')) == 1


@pytest.fixture(scope='module')
def sound(tmp_path_factory):
    """A bundle to damage copies of."""
    with tf.Graph().as_default():
        return bundles.write(zoo.failed('a_feed'), tmp_path_factory.mktemp('sound'))


@pytest.fixture
def sound_and_not(sound, tmp_path):
    """A log directory with two bundles, and the path of the one to damage, the older one."""
    for name in ('step-1', 'step-2'):
        path = str(tmp_path / 'slimguard' / name)
        shutil.copytree(sound, path)
        stamp = int(name[-1]) * 1e9
        os.utime(os.path.join(path, 'incident.json'), (stamp, stamp))
    return tmp_path, str(tmp_path / 'slimguard' / 'step-1')


FIELDS = ('step', 'loss', 'reason', 'tensors', 'strategy', 'time', 'action')


def test_a_record_of_anything_makes_a_page(tmp_path):
    strange = [None, True, -1, 10**400, 1e999, 'x', [], {}, [[1]], '\ud800\u202e', '<b>']
    lines = [line(**{field: thing}) for field in FIELDS for thing in strange]
    record(tmp_path, *lines, '{}', '[]', '{"step": 1')
    seen = see(tmp_path)
    assert harmless(seen)
    found = record_file.read_record(tmp_path)
    assert found.unreadable + len(found.incidents) == len(lines) + 3
    assert rows_of(seen)
    numbers = re.findall('scope="row" class="number">([0-9]+)(?: to ([0-9]+))?<', page_of(tmp_path))
    ends = [(int(first), int(last or first)) for first, last in numbers]
    shown = [number for first, last in ends for number in range(first, last + 1)]
    assert shown == list(range(1, len(found.incidents) + 1))
    assert '%d lines of the record could not be read' % found.unreadable in seen.text


@pytest.mark.full
def test_of_thousands_of_incidents_the_table_has_the_first(tmp_path):
    record(tmp_path, *[line(step=n, action='skip', reason='xy'[n % 2]) for n in range(5000)])
    test_loss_history.write(tmp_path, [(step, 1.0) for step in range(0, 5000, 1000)])
    seen = see(tmp_path)
    assert len(rows_of(seen)) == 200 + 1
    assert '4800 more, in slimguard/incidents.jsonl' in seen.text and 'skipped (5000)' in seen.text
    # Each mark links to the row of its first incident, or to the row that stands for left out ones.
    targets = {a['id'] for _, a in seen.elements if 'id' in a}
    assert {'row-1', 'row-201'} <= {a['href'][1:] for a in seen.of('a')} <= targets


def test_incidents_that_follow_one_another_and_look_alike_have_one_row(tmp_path):
    alike = [line(step=step, action='skip', loss=step) for step in (46, 50, 400)]
    record(tmp_path, line(step=2, action='skip', reason='other'), *alike, line(step=401))
    seen = see(tmp_path)
    assert [row['id'] for row in rows_of(seen)] == ['row-1', 'row-2', 'row-5']
    words = [word.strip() for word in seen.words]
    assert words.count('2 to 4') == words.count('46 to 400') == 1
    assert words.count('3 incidents alike') == 1
    assert page_of(tmp_path).count('data-name="loss"></td>') == 1  # their losses differ
    # Of one kind and action, although the numbers differ.
    causes = ['in the forward pass: log of 0 (%d values), in row %d' % (n, n) for n in (1, 2, 3)]
    known = [line(action='skip', diagnosis=it, gradient_norm=len(it)) for it in causes[:2]]
    known.append(line(action='skip', diagnosis=causes[2] + '4', gradient_norm=1.0))
    record(tmp_path, *known, line(action='raise', diagnosis=causes[0]))
    seen = see(tmp_path)
    assert [row['id'] for row in rows_of(seen)] == ['row-1', 'row-4']
    assert seen.words.count('3 incidents alike; the cause is that of the first') == 1
    assert 'gradient norm ' not in seen.words
    record(tmp_path, *[line(step=None, action='skip')] * 30)
    words = see(tmp_path).words
    assert words.count('1 to 30') == 1 and words.count('NaN') == 1


@pytest.mark.parametrize('unsaid', [{}, {'action': None}, {'action': ''}])
def test_an_action_that_the_record_does_not_say_is_said_so(tmp_path, unsaid):
    # A process may be killed before its policy has acted.
    record(tmp_path, line(**unsaid))
    seen = see(tmp_path, png=str(tmp_path / 'x.png'))
    assert 'One incident: action not recorded.' in seen.text
    assert seen.words.count('action not recorded') == 1 and 'None' not in ' '.join(seen.words)


def test_without_a_loss_it_says_what_to_add(tmp_path):
    (tmp_path / 'graph.pbtxt').write_text('')
    seen = see(tmp_path)
    assert "tf.compat.v1.summary.scalar('total_loss', total_loss)" in seen.text
    assert not seen.of('svg') and not seen.of('table')


def put(path, history):
    """Puts a history into a bundle."""
    text = json.dumps(history)
    for odd in ('NaN', '-Infinity', 'Infinity'):
        text = re.sub(r'(?<=[\[ ])%s(?=[,\]])' % odd, '"%s"' % odd, text)
    test_bundle.edit_json(path, lambda it: it.update(history=json.loads(text)))


@pytest.mark.full
def test_the_last_steps_are_shown(sound_and_not):
    logdir, path = sound_and_not
    norms = np.random.RandomState(0).lognormal(0, 0.3, [200, 300])
    norms[-20:, 150:] *= 1e5
    norms[-3:] = np.nan
    names = [('net/block%d/unit_3/weights' % n,) for n in range(300)]
    put(path, history_of(norms, names, np.linspace(3, 1, 200)))
    seen = see(logdir, png=str(logdir / 'x.png'))
    assert 'The last 200 steps' in seen.text and 'net/block' in seen.text
    assert 'At step 180: the gradient of ' in seen.text
    assert report_data.NO_EVENT_FILES in seen.text
    assert len(seen.of('svg', class_='wide')) == 1
    assert len(page_of(logdir)) < 1e6
    assert pixels((logdir / 'x.png').read_bytes()).shape[0] < 6000


@pytest.mark.parametrize('points', [2, 3])
def test_of_fewer_than_three_points_there_is_no_chart_but_a_sentence(sound_and_not, points):
    logdir, path = sound_and_not
    put(path, history_of(np.ones([points, 2]), loss=np.ones(points)))
    test_loss_history.write(logdir, [(step, 1.0) for step in range(points)])
    data = report_data.gather(str(logdir))
    assert ('The last 3 steps' in page.render(data)) == (data.curve is not None) == (points == 3)
    assert data.curve_note == ('' if points == 3 else report_data.TOO_FEW_POINTS)


@pytest.mark.parametrize(
    'checkpoint, logged, said',
    [
        (300, 290, 'The newest checkpoint is of step 300, 180 steps beyond the last incident'),
        (None, 121, 'The event files have a loss up to step 121, 1 step beyond the last incident'),
        (100, None, 'The newest checkpoint is of step 100.'),
        (None, None, ''),
    ],
)
def test_the_page_says_how_far_the_training_came(tmp_path, checkpoint, logged, said):
    record(tmp_path, line(step=120, action='skip'))
    if checkpoint is not None:
        with tf.Graph().as_default(), tf1.Session() as session:
            step = tf1.train.get_or_create_global_step()
            session.run(step.initializer)
            step.load(checkpoint, session)
            tf1.train.Saver().save(session, str(tmp_path / 'model'), checkpoint // 100)  # an epoch
    if logged is not None:
        test_loss_history.write(tmp_path, [(step, 1.0) for step in (1, 2, logged)])
    seen = see(tmp_path)
    assert said in seen.text if said else 'newest' not in seen.text
    assert ('beyond' in seen.text) == ('beyond' in said)


def test_what_is_not_in_the_curve_is_counted(tmp_path):
    losses = [float('nan')] * 2 + [1.0] * 40
    test_loss_history.write(tmp_path, list(enumerate(losses)))
    note = 'The curve leaves out the recorded values that are not finite: 2 of 42.'
    assert report_data.gather(str(tmp_path)).curve_note == note


def test_the_norm_of_the_gradients_is_told_in_the_card_and_in_the_table(tmp_path):
    record(tmp_path, line(action='stop', gradient_norm=3.1e9, gradient_norm_ratio=2.44e6))
    seen = see(tmp_path)
    said = '3.1e+09, 2.44e+06 times the median of the last good steps'
    assert sum(word.strip() == said for word in seen.words) == 1
    assert seen.words.count('gradient norm ' + said) == 1


def test_what_is_open_are_the_numbers_that_made_the_bad_one(tmp_path):
    x, w = (tf1.placeholder(tf.float32, [4], name) for name in 'xw')
    v = tf1.get_variable('v', [])
    loss = tf.reduce_sum(tf.square(v - x) * w) / tf.reduce_sum(w)
    train_op = gate.guard(tf1.train.GradientDescentOptimizer(0.1).minimize(loss), loss)
    with slimguard.watch(tf1.Session(), on_nan='skip', logdir=str(tmp_path)) as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op, {x: [1, 2, 3, 4], w: [0, 0, 0, 0]})
    opened = report_data.gather(str(tmp_path)).incidents[0].opened
    assert [(it.name, it.is_at_fault) for it in opened.batch] == [('w:0', True), ('x:0', False)]
    assert opened.batch_note == 'The bad value was computed from w:0.'
    assert (opened.ranges[0].tensor, opened.ranges[0].begins) == ('truediv:0', True)
    assert opened.ranges[0].range == 'float32, a scalar: NaN'


# Log directories without a record, and damaged ones.


def test_without_a_record_the_command_says_so_and_makes_nothing(tmp_path, capsys):
    (tmp_path / 'checkpoint').write_text('')
    with pytest.raises(SystemExit) as caught:
        __main__.main(['report', str(tmp_path)])
    assert caught.value.code == 1
    out, err = capsys.readouterr()
    assert not out and 'there is no record of incidents in %s: ' % tmp_path in err
    assert os.listdir(str(tmp_path)) == ['checkpoint']


@pytest.mark.full
def test_bundles_without_their_record_are_shown_and_the_record_missed(copy):
    os.remove(record_file.path_in(str(copy)))
    seen = see(copy)
    assert 'There is no record of incidents, but there are folders of bad steps.' in seen.text
    assert len(seen.of('article')) == 3


def test_an_empty_record_has_no_incidents(tmp_path):
    record(tmp_path)
    assert 'No incident is on record.' in see(tmp_path).text


def a_directory(path):
    path.unlink()
    path.mkdir()


def noise(path):
    path.write_bytes(bytes(np.random.RandomState(0).bytes(1000)))


UNREADABLE = {
    'a directory': (a_directory, ''),
    'noise': (noise, 'an incident'),
    'another json': (lambda path: path.write_text('{"a": 1}\n'), 'its only line is no incident'),
    'no objects': (lambda path: path.write_text('1\n[2]\n'), 'none of its 2 lines is an incident'),
}


@pytest.mark.parametrize('how', UNREADABLE)
def test_a_record_that_cannot_be_read_is_an_error_and_the_page_is_made(tmp_path, how, capsys):
    spoil_it, why = UNREADABLE[how]
    spoil_it(record(tmp_path, line()))
    assert report.main(str(tmp_path), png=str(tmp_path / 'x.png')) == 1
    text = (tmp_path / 'slimguard' / 'report.html').read_text()
    (lead,) = re.findall('<p class="lead alarm">(.*?)</p>', text)
    assert lead.startswith('The record of incidents cannot be read: ') and why in lead.lower()
    assert 'slimguard: The record of incidents cannot be read: ' in capsys.readouterr().err
    assert 'No incident' not in text
    assert (tmp_path / 'x.png').exists()


def test_foreign_lines_are_counted_and_those_of_ours_shown(tmp_path, capsys):
    record(
        tmp_path, line(step=7), '{"event": "start"}', line(step=8, action='skip'), 'null', '{"ste'
    )
    seen = see(tmp_path)
    assert len(rows_of(seen)) == 2
    said = '3 lines of the record could not be read; a kill can cut one short.'
    assert said in seen.text and said in capsys.readouterr().err


@pytest.mark.parametrize('there', [[], ['data.csv', 'notes.txt'], ['slimguard/__init__.py']])
def test_a_directory_that_is_no_logdir_is_refused_and_left_as_it_is(tmp_path, there, capsys):
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('')
    before = sorted(tmp_path.rglob('*'))
    assert report.main(str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert 'is no logdir of a training: it holds no checkpoint, ' in said
    assert sorted(tmp_path.rglob('*')) == before


@pytest.mark.parametrize('bad, why', [('', 'is empty'), ('nowhere', 'there is no directory')])
def test_a_logdir_that_cannot_be_is_a_sentence(bad, why, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report.main(bad) == 2
    assert why in capsys.readouterr().err
    assert os.listdir(str(tmp_path)) == []


# The names of log directories.


@pytest.mark.full
def test_a_logdir_with_spaces_and_letters_of_all_kinds(copy):
    logdir = copy.parent / 'größe 100% #1?'
    copy.rename(logdir)
    output, picture = logdir / 'ä b.html', logdir / '%d.png'
    assert report.main(logdir, output=output, png=str(picture).encode()) == 0
    seen = Seen(output.read_text(encoding='utf-8'))
    assert len(seen.of('article')) == 3
    assert "python -m slimguard replay '%s/slimguard/step-" % logdir in seen.text
    assert picture.exists()


@pytest.mark.full
@pytest.mark.skipif(tf.__version__.startswith('1.'), reason='ram:// exists from TensorFlow 2.12 on')
def test_a_logdir_on_another_file_system(copy, capsys):
    logdir = 'ram://%s' % copy.parent.name
    for path in copy.rglob('*'):
        if path.is_file():
            name = '%s/%s' % (logdir, path.relative_to(copy))
            tf.io.gfile.makedirs(os.path.dirname(name))
            tf.io.gfile.copy(str(path), name)
    assert report.main(logdir + '/', png=logdir + '/x.png') == 0
    page_path = logdir + '/slimguard/report.html'
    assert capsys.readouterr().out == '%s\n%s/x.png\n' % (page_path, logdir)
    with tf.io.gfile.GFile(page_path) as file:
        seen = Seen(file.read())
    assert '3 incidents: 1 raised an error, 1 rolled back, 1 skipped.' in seen.text
    with tf.io.gfile.GFile(logdir + '/x.png', 'rb') as file:
        assert pixels(file.read()).shape[1] == 1280
    assert report.main('ram://nowhere') == 2
    assert "there is no directory 'ram://nowhere'" in capsys.readouterr().err


# Bundles that are not as they should be.


@pytest.mark.full
@pytest.mark.parametrize('error', [zlib.error('x'), MemoryError()], ids=repr)
def test_whatever_a_bundle_raises_only_its_place_says_so(sound_and_not, monkeypatch, error):
    logdir, bad = sound_and_not

    def fail(*args):
        raise error

    real = bundle.read
    monkeypatch.setattr(bundle, 'read', lambda p: fail() if p == bad else real(p))
    seen = see(logdir, png=str(logdir / 'x.png'))
    assert len(seen.of('article')) == 1 and (logdir / 'x.png').exists()
    assert 'step-1 cannot be read: ' in seen.text


LONG = '\u202ename\x00' * 20000


def without_end(said):
    """Makes all texts very long that have no limit by nature."""
    said['incident'].update(reason=LONG, action=LONG, restored=LONG, tensors=[LONG])
    said['versions'] = {LONG: LONG}
    said['diagnosis'].update(
        tensor=LONG,
        op_type=LONG,
    )
    said['text'] = told_of(LONG)
    for row in said['diagnosis']['ranges'][:20]:
        row['tensor'] += LONG


@pytest.mark.full
def test_a_bundle_without_measure_has_a_page_that_opens(sound_and_not):
    logdir, path = sound_and_not
    test_bundle.edit_json(path, without_end)
    seen = see(logdir, png=str(logdir / 'x.png'))
    assert len(seen.of('article')) == 2
    assert os.path.getsize(str(logdir / 'slimguard' / 'report.html')) < 2e6
    assert pixels((logdir / 'x.png').read_bytes()).shape[0] < 10000


# The command.


def test_the_command_writes_the_page_and_the_picture_whole(copy, tmp_path):
    output, picture = tmp_path / 'a.html', tmp_path / 'a.png'
    output.write_text('old')
    command = '-m', 'slimguard', 'report', copy, '--output', output, '--png', picture
    run = forked_python(*command)
    assert (run.returncode, run.stdout) == (0, '%s\n%s\n' % (output, picture)), run.stderr
    assert harmless(Seen(output.read_text(encoding='utf-8')))
    assert picture.read_bytes().startswith(b'\x89PNG')
    assert sorted(os.listdir(str(tmp_path))) == ['a.html', 'a.png', 'copy']
    # No temporary file was left beside the bundles.
    assert not [n for n in os.listdir(str(copy / 'slimguard')) if n.startswith('.')]


@pytest.mark.full
def test_it_opens_the_page_in_the_browser(copy, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, 'open', lambda page: opened.append(page) or len(opened) < 2)
    assert report.main(str(copy), opens=True) == 0
    assert opened == [(copy / 'slimguard' / 'report.html').as_uri()]
    assert report.main(str(copy), opens=True) == 0
    assert 'no browser was found to open' in capsys.readouterr().err
    assert report.main(str(copy), output='/dev/null', opens=True) == 2
    assert '--open needs a file' in capsys.readouterr().err and len(opened) == 2


@pytest.mark.full
@pytest.mark.parametrize(
    'output, why, option',
    [
        ('nowhere/a.html', 'cannot be written: there is no directory', 'output'),
        ('folder', 'is a directory; expected a file, such as', 'png'),
        ('file/a.html', 'cannot be written', 'png'),
        ('', ' is empty; expected the path of a file', 'output'),
    ],
)
def test_what_cannot_be_written_is_an_error(copy, monkeypatch, capsys, output, why, option):
    monkeypatch.chdir(copy.parent)
    (copy.parent / 'folder').mkdir()
    (copy.parent / 'file').write_text('')
    assert report.main(str(copy), **{option: output}) == 2
    said = capsys.readouterr().err
    assert why in said and said.startswith('slimguard: ') and output in said
    assert '.making-' not in said
    assert sorted(os.listdir(str(copy.parent))) == ['copy', 'file', 'folder']


@pytest.mark.full
def test_a_pipe_gets_the_page(copy, tmp_path):
    fifo = tmp_path / 'fifo'
    os.mkfifo(str(fifo))
    read = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    assert report.main(str(copy), output=str(fifo)) == 0
    reader.join()
    assert read[0].startswith('<!doctype html>') and read[0].endswith('</html>\n')
    assert stat.S_ISFIFO(os.stat(str(fifo)).st_mode)


@pytest.mark.full
@pytest.mark.parametrize('kind', ['pipe', 'appended'])
def test_the_standard_output_gets_the_page_and_nothing_else(copy, tmp_path, kind):
    command = '-m', 'slimguard', 'report', copy, '--output', '/dev/stdout'
    if kind == 'pipe':
        done = forked_python(*command, text=False)
        said = done.stdout
    else:
        out = tmp_path / 'out'
        out.write_text('before')
        with open(str(out), 'ab') as file:
            done = forked_python(*command, stdout=file)
        said = out.read_bytes()
    assert done.returncode == 0, done.stderr
    before = b'before' if kind == 'appended' else b''
    assert said.startswith(before + b'<!doctype html>') and said.endswith(b'</html>\n')


WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from slimguard.report import report
sys.exit(report.main(*sys.argv[1:]))
"""


@pytest.mark.full
def test_without_matplotlib_the_page_has_words_and_says_what_draws(copy, tmp_path):
    run = forked_python('-c', WITHOUT, 'matplotlib', copy)
    assert run.returncode == 0, run.stderr
    assert 'pip install matplotlib' in run.stderr
    seen = Seen(page_of(copy))
    assert 'The page has no charts' in seen.text and not seen.of('svg')
    assert seen.text.count('bad data: 1 NaN among 384 values, in row 4') > 3
    run = forked_python('-c', WITHOUT, 'matplotlib', copy, tmp_path / 'a.html', tmp_path / 'a.png')
    assert run.returncode == 2 and '--png cannot be drawn' in run.stderr
    assert not (tmp_path / 'a.png').exists() and not (tmp_path / 'a.html').exists()


def test_without_jinja2_it_says_what_to_install(copy):
    run = forked_python('-c', WITHOUT, 'jinja2', copy)
    assert run.returncode == 2 and "pip install 'jinja2>=3.0'" in run.stderr


# In a browser.

# A script for a copy of the page, since the page itself allows no script.
LAID_OUT = """
<script>
addEventListener('load', () => {
  const found = [];
  const box = it => it.getBoundingClientRect();
  const shown = it => box(it).width > 1 && box(it).height > 1 &&
    getComputedStyle(it).visibility == 'visible' && it.checkVisibility();
  const texts = [...document.querySelectorAll(
    'text, h1, h2, h3, h4, p, dt, dd, figcaption, summary, th[scope=row], .why a, .why span, .when'
  )].filter(shown);
  for (const [i, one] of texts.entries()) {
    if (box(one).right > innerWidth + .5 || box(one).left < -.5)
      found.push('beyond the window: ' + one.textContent);
    for (const other of texts.slice(i + 1)) {
      if (one.contains(other) || other.contains(one)) continue;
      const [a, b] = [box(one), box(other)];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3)
        found.push('on one another: ' + one.textContent + ' | ' + other.textContent);
    }
  }
  const said = document.createElement('output');
  said.textContent = JSON.stringify([texts.length, found]);
  document.body.append(said);
});
</script>
"""


@in_a_browser
@pytest.mark.parametrize('incidents, width', [(1, 390), (500, 1280)])
def test_nothing_overlaps_and_nothing_is_beyond_the_window(copy, tmp_path, incidents, width):
    kinds = ('gradient norm 3.1e9 is 2.4e6 times the median %d', 'not finite: %dth/weights')
    lines = [
        line(step=n * 100, action=['skip', 'rollback'][n % 2], reason=kinds[n % 2] % n)
        for n in range(incidents - 1)
    ]
    ended = dict(action='raise', bundle='x/slimguard/step-10', gradient_norm=7e9)
    record(copy, *lines, line(step=10**6 + 5, **ended))
    see(copy)
    page = tmp_path / 'copy.html'
    text = re.sub('<meta http-equiv[^>]*>', '', page_of(copy))
    page.write_text(text.replace('<details', '<details open') + LAID_OUT, encoding='utf-8')
    frame = tmp_path / 'frame.html'
    # In a frame, since the browser makes no window as narrow as a phone.
    frame.write_text(
        '<iframe src="copy.html" width="%d" height="9000" frameborder="0"></iframe>'
        % width
        + '<script>addEventListener("load", () => { document.body.append('
        'document.querySelector("iframe").contentDocument.querySelector("output").textContent) })'
        '</script>'
    )
    run, _ = browse(tmp_path, frame, '--dump-dom', '--allow-file-access-from-files')
    texts, wrong = json.loads(re.search(r'\[\d+,\[.*\]\]', run.stdout).group())
    assert not wrong and texts > 100


@in_a_browser
@pytest.mark.parametrize(
    'scheme, width, paper, curve, skip',
    [
        ('light', 1100, (251, 250, 247), (51, 65, 78), (31, 111, 196)),
        ('dark', 500, (22, 23, 25), (201, 211, 220), (99, 168, 242)),
    ],
)
def test_a_browser_draws_it_and_asks_for_nothing(
    trained, tmp_path, scheme, width, paper, curve, skip
):
    output, shot = tmp_path / 'report.html', tmp_path / 'shot.png'
    assert report.main(str(trained), output=str(output)) == 0
    run, asked = browse(
        tmp_path,
        output,
        '--screenshot=%s' % shot,
        '--window-size=%d,4000' % width,
        '--blink-settings=preferredColorScheme=%d' % ['dark', 'light'].index(scheme),
    )
    assert asked == [] and 'CONSOLE' not in run.stderr
    shown = pixels(shot.read_bytes())[:, :, :3]
    assert tuple(shown[5, 5]) == paper

    def count(color):
        return np.count_nonzero(np.abs(shown - color).max(axis=2) <= 8)

    assert count(curve) > 200 and count(skip) > 60
    assert count(samples.BAD) > 25
    # Nothing is wider than the window: the right edge is paper, all the way down.
    assert np.all(shown[:, -4:] == paper)
