"""The report: shows what there is to see, believes nothing, and asks for nothing."""

import base64
import io
import json
import os
import pathlib
import re
import shutil
import stat
import struct
import subprocess
import sys
import threading
import zlib
from html.parser import HTMLParser

import jinja2
import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import gate
from slimguard.diagnosis import bundle
from slimguard.incidents import record_file, record_reader
from slimguard.report import bundle_view, html, report, report_data, samples, words
from tests.diagnosis import test_bundle
from tests.helpers.children import forked_python, python

tf1 = tf.compat.v1

BAD = (4, 2, 3, 0)  # the row and the pixel
CHROMIUM = next(
    filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None
)
HOSTILE = '<img src=x onerror=alert(1)>"\'</title></style><script>alert(2)</script>&$\\frac$'
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
    """A copy of it to spoil."""
    shutil.copytree(str(trained), str(tmp_path / 'copy'))
    return tmp_path / 'copy'


class Seen(HTMLParser):
    """The elements of a page and their text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)

    def of(self, tag, **wanted):
        return [
            a
            for t, a in self.elements
            if t == tag and wanted.items() <= {**a, 'class_': a.get('class')}.items()
        ]

    @property
    def text(self):
        return ' '.join(self.words)


def rows_of(seen):
    """The rows of the table of incidents."""
    return [a for a in seen.of('tr') if a.get('id', '').startswith('row')]


def see(logdir, **kwargs):
    """Makes the report and looks at it."""
    assert report.main(str(logdir), **kwargs) == 0
    return Seen((logdir / 'slimguard' / 'report.html').read_text(encoding='utf-8'))


def pixels(png):
    from matplotlib import image

    return (image.imread(io.BytesIO(png)) * 255).round().astype(int)


def test_it_shows_the_curve_the_incidents_the_diagnosis_the_ranges_and_the_samples(copy):
    seen = see(copy)
    assert len(seen.of('path', class_='curve')) >= 2  # the legend's, and one for each stretch
    for action in ('skip', 'rollback', 'raise'):
        # In the legend, in the chart, in the table.
        assert len(seen.of('path', class_='is-' + action)) == 3
    assert seen.of('tr', id='row-3')
    assert '3 incidents: 1 raised, 1 rolled back, 1 skipped.' in seen.text
    assert seen.text.count('bad data: 1 NaN among 384 values, in row 4') == 3
    assert 'test_report.py:' in seen.text
    assert tf.__version__ in seen.text and 'copy' in seen.text
    assert seen.text.count('non-finite from here on') == 3
    assert len(seen.of('image', class_='pixels')) == 3 * 6
    assert len(seen.of('li', class_='bad')) == 3
    assert len(seen.of('rect', class_='ring')) == 3
    shown = pixels(base64.b64decode(seen.of('image', class_='pixels')[4]['href'].partition(',')[2]))
    assert shown.shape == (8, 8, 3)
    bad = np.all(shown == (255, 0, 144), axis=2)
    assert np.argwhere(bad).tolist() == [[2, 3]]


def test_each_incident_with_a_bundle_leads_to_it(copy):
    seen = see(copy)
    targets = {a['id'] for _, a in seen.elements if 'id' in a}
    links = [a['href'] for a in seen.of('a')]
    # Three marks, three rows, and what they have in common.
    assert sorted(links) == sorted(
        ['#row-1', '#row-2', '#row-3', '#incident-5', '#incident-8', '#incident-10', '#row-1']
    )
    assert all(link[0] == '#' and link[1:] in targets for link in links)


def links_of(logdir, **changes):
    """The rows of the table by the bundles they lead to; `changes` are made in the record."""
    path = logdir / 'slimguard' / 'incidents.jsonl'
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.update(changes)
    path.write_text('\n'.join(map(json.dumps, lines)))
    text = see(logdir) and (logdir / 'slimguard' / 'report.html').read_text()
    rows = re.findall('<tr id="(row-[0-9]+)">(.*?)</tr>', text, re.DOTALL)
    return {link: row for row, said in rows for link in re.findall('<a href="#(.*?)"', said)}


def test_a_bundle_is_told_by_its_name_and_not_by_a_time(copy):
    linked = {'incident-5': 'row-1', 'incident-8': 'row-2', 'incident-10': 'row-3'}
    assert links_of(copy) == linked
    assert links_of(copy, time=1e9) == linked
    # Of bundles with one name, all but the last were removed.
    assert links_of(copy, bundle='C:\\logs\\slimguard\\incident-8\\') == {'incident-8': 'row-3'}
    for none in (None, '', '/', 'incident-7'):
        assert links_of(copy, bundle=none) == {}


@pytest.mark.parametrize('shape, rows', [([6], [1, 2]), ([7], []), ([], [])])
def test_samples_that_fail_later_on_are_framed_where_the_rows_are_theirs(copy, shape, rows):
    def in_the_forward_pass(said):
        said['diagnosis'].update(phase='forward', op_type='Log', rows=[1, 2])
        said['diagnosis']['output']['shape'] = shape

    test_bundle.edit_json(bundle.paths(str(copy))[0], in_the_forward_pass)
    seen = see(copy)
    assert len(seen.of('li', class_='suspect')) == len(rows)
    for row in rows:
        assert 'row %d, not finite later on' % row in seen.text


def harmless(seen):
    """Whether a page runs nothing and asks for nothing; and holds what it should."""
    names = {tag for tag, _ in seen.elements}
    assert not names & {'script', 'img', 'iframe', 'link', 'object', 'embed', 'base', 'form'}
    for _, attributes in seen.elements:
        assert not [name for name in attributes if name.startswith('on') or name == 'style']
        for name in ('src', 'xlink:href', 'action', 'srcset'):
            assert name not in attributes
        assert re.match('#|data:image/png;base64,|$', attributes.get('href', ''))
    (policy,) = seen.of('meta', **{'http-equiv': 'Content-Security-Policy'})
    assert policy['content'].startswith("default-src 'none'; img-src data:; style-src")
    return True


def spoil(copy, change):
    """Changes incident.json of each bundle, and each line of the record."""
    for path in bundle.paths(str(copy)):
        test_bundle.edit_json(path, change)
    record = copy / 'slimguard' / 'incidents.jsonl'
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    for line in lines:
        line.update(action=HOSTILE, reason=HOSTILE, restored=HOSTILE, process=HOSTILE)
    record.write_text('\n'.join(map(json.dumps, lines)))


def hostile_words(said):
    said['incident'].update(reason=HOSTILE, action=HOSTILE)
    said['versions'] = {HOSTILE: HOSTILE}
    said['diagnosis'].update(
        trouble=HOSTILE,
        phase=HOSTILE,
        tensor=HOSTILE,
        op_type=HOSTILE,
        forward_op=HOSTILE,
        not_seen=[HOSTILE],
        line={'file': HOSTILE, 'number': HOSTILE, 'function': HOSTILE, 'text': HOSTILE},
        inputs=[{'name': HOSTILE, 'range': None}],
    )
    said['diagnosis']['output']['dtype'] = HOSTILE
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
    # Not all that a file's name can hold goes through TensorFlow: it takes names for patterns.
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
    assert seen.text.count('total_loss ' + HOSTILE) == 2
    assert len(seen.of('article')) == 3
    assert pixels((tmp_path / 'x.png').read_bytes()).shape[1] == 1200


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
    template = html.environment().from_string('<p title="{{ said }}">{{ said }}</p>')
    assert template.render(said=said) == '<p title="%s">%s</p>' % (shown, shown)


def test_what_a_macro_gives_is_escaped_once():
    template = html.environment().from_string(
        '{% macro bold(it) %}<b>{{ it }}</b>{% endmacro %}<p>{{ bold(said) }}{{ said }}</p>'
    )
    assert (
        template.render(said='<i>&\x00') == '<p><b>&lt;i&gt;&amp;\\x00</b>&lt;i&gt;&amp;\\x00</p>'
    )


def test_a_name_that_a_template_has_no_value_for_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match='is undefined'):
        html.environment().from_string('<p>{{ nowhere }}</p>').render()


WRONG = {
    'ranges of words': test_bundle.says('diagnosis', 'ranges', value=['x', 'y']),
    'a range of words': test_bundle.says('diagnosis', 'ranges', -1, 'range', 'min', value='x'),
    'a range that is huge': test_bundle.says(
        'diagnosis', 'ranges', -1, 'range', 'max', value=10**999
    ),
    'a range without end': test_bundle.says(
        'diagnosis', 'ranges', -1, 'range', 'max', value='Infinity'
    ),
    'counts of words': test_bundle.says('diagnosis', 'ranges', -1, 'range', 'nan', value={}),
    'a diagnosis of nothing': test_bundle.says('diagnosis', value={'phase': 'input'}),
    'a diagnosis of lists': test_bundle.says('diagnosis', 'line', value=[1]),
    'positions of words': test_bundle.says('diagnosis', 'positions', value=['x']),
    'a shape of words': test_bundle.says('diagnosis', 'output', 'shape', value='x'),
    'deep positions': test_bundle.says('diagnosis', 'positions', value=[[[[[]]]]]),
    'inputs that are deep': test_bundle.says('diagnosis', 'inputs', value=[[[[]]]]),
}


@pytest.mark.parametrize('name', list(WRONG) + list(test_bundle.DAMAGES))
def test_a_damaged_bundle_is_one_line_and_not_the_end(sound_and_not, name):
    logdir, path = sound_and_not
    (WRONG.get(name) or test_bundle.DAMAGES[name])(path)
    found = report_data.gather(str(logdir))
    if name in _SHOWN_ALL_THE_SAME:
        assert len(found.bundles) == 2
    elif not isinstance(found.bundles[0], bundle_view.UnreadableBundle):
        raise AssertionError(found.bundles[0])
    seen = Seen(html.render(found))
    assert harmless(seen)
    lines = [b for b in found.bundles if isinstance(b, bundle_view.UnreadableBundle)]
    assert len(seen.of('p', class_='broken')) == len(lines) <= 1
    for it in lines:
        assert '%s cannot be read: ' % it.name in seen.text
    assert len(seen.of('article')) == 2 - len(lines)


# What is wrong with them shows when they are run, and the report runs nothing.
_SHOWN_ALL_THE_SAME = {
    'another placeholder',
    'an unknown tensor',
    'labels of another number',
    'truncated state',
}


@pytest.fixture(scope='module')
def sound(tmp_path_factory):
    """A bundle to damage copies of."""
    from tests.helpers import zoo

    with tf.Graph().as_default():
        return test_bundle.write(zoo.failed('a_feed'), tmp_path_factory.mktemp('sound'))


@pytest.fixture
def sound_and_not(sound, tmp_path):
    """A log directory with two bundles, and the path of the one to damage, the older one."""
    for name in ('incident-1', 'incident-2'):
        path = str(tmp_path / 'slimguard' / name)
        shutil.copytree(sound, path)
        stamp = int(name[-1]) * 1e9
        os.utime(os.path.join(path, 'incident.json'), (stamp, stamp))
    return tmp_path, str(tmp_path / 'slimguard' / 'incident-1')


FIELDS = ('step', 'loss', 'reason', 'tensors', 'strategy', 'time', 'action')


def line(**said):
    """A line of a record."""
    usual = {
        'step': 4,
        'loss': 'nan',
        'reason': 'x',
        'tensors': [],
        'strategy': 'hook',
        'time': 1e9,
    }
    return json.dumps(dict(usual, **said))


def record(logdir, *lines):
    """Makes a log directory with a record of these lines."""
    path = logdir / 'slimguard' / 'incidents.jsonl'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join(lines) + '\n')
    return path


def test_a_record_of_anything_makes_a_page(tmp_path):
    strange = [None, True, -1, 10**400, 1e999, 'x', [], {}, [[1]], '\ud800\u202e', '<b>']
    lines = [line(**{field: thing}) for field in FIELDS for thing in strange]
    record(tmp_path, *lines, '{}', '[]', '{"step": 1')
    seen = see(tmp_path)
    assert harmless(seen)
    found = record_reader.read_record(tmp_path)
    assert (found.unreadable, len(found.incidents) + found.foreign) == (1, len(lines) + 2)
    assert len(rows_of(seen)) == len(found.incidents)
    assert '%d lines of the record are no incidents of slimguard.' % found.foreign in seen.text


def test_thousands_of_incidents_are_marked_and_the_table_stays_short(tmp_path):
    record(tmp_path, *[line(step=step, action='skip') for step in range(5000)])
    seen = see(tmp_path)
    assert len(rows_of(seen)) == 200 + 1
    assert '4800 more, in slimguard/incidents.jsonl' in seen.text
    assert 'skip (5000, at most 105 in a bar)' in seen.text
    bars = seen.of('rect', class_='is-skip')
    assert len(bars) == 48 and {bar['height'] for bar in bars} <= {'16.0', '15.8', '15.7'}
    # Each leads to the row of its first incident, or to where that was left out.
    targets = {a['id'] for _, a in seen.elements if 'id' in a}
    links = [a['href'][1:] for a in seen.of('a')]
    assert {'row-1', 'rows-left-out'} <= set(links) <= targets


@pytest.mark.parametrize('unsaid', [{}, {'action': None}, {'action': ''}])
def test_an_action_that_the_record_does_not_say_is_said_so(tmp_path, unsaid):
    # A process may be killed before its policy has acted.
    record(tmp_path, line(**unsaid))
    seen = see(tmp_path, png=str(tmp_path / 'x.png'))
    assert 'One incident: 1 with no word on what was done.' in seen.text
    assert seen.words.count('not said') == 1
    assert len(seen.of('path', class_='is-not-said')) == 3
    assert 'None' not in ' '.join(seen.words)


def test_without_a_loss_it_says_what_to_add(tmp_path):
    (tmp_path / 'graph.pbtxt').write_text('')
    seen = see(tmp_path)
    assert "tf.compat.v1.summary.scalar('total_loss', total_loss)" in seen.text
    assert not seen.of('svg') and not seen.of('table')


# What it cannot know.


def test_without_a_record_it_says_what_that_can_mean(tmp_path, capsys):
    (tmp_path / 'checkpoint').write_text('')
    seen = see(tmp_path)
    said = (
        'There is no record of incidents: no guarded training has written here, or the record was '
    )
    assert said in seen.text
    assert said in capsys.readouterr().err
    assert 'No incident' not in seen.text


def test_bundles_without_their_record_are_shown_and_the_record_missed(copy):
    os.remove(record_file.path_in(str(copy)))
    seen = see(copy)
    assert 'There is no record of incidents, though bad steps were kept. 3 bad steps' in seen.text
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
    record(tmp_path, line(step=7), '{"event": "start"}', line(step=8), 'null', '{"ste')
    seen = see(tmp_path)
    assert len(rows_of(seen)) == 2
    err = capsys.readouterr().err
    for said in (
        '1 line of the record could not be read; a kill can cut one short.',
        '2 lines of the record are no incidents of slimguard.',
    ):
        assert said in seen.text and said in err


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


def test_what_it_says_does_not_steer_the_terminal(tmp_path, capsys):
    logdir = tmp_path / 'a\x1b[2Jb'
    (logdir / 'events.out.tfevents.\x1b]0;x\x07\ny').mkdir(parents=True)
    assert report.main(str(logdir)) == 0
    said = capsys.readouterr()
    assert '\x1b' not in said.out + said.err
    assert 'a\\x1b[2Jb' in said.out and 'events.out.tfevents.\\x1b]0;x\\x07\\ny' in said.err


# Where it is.


@pytest.mark.parametrize(
    'given',
    [
        'copy',
        './copy/',
        'x/../copy',
        b'copy',
        pathlib.Path('copy'),
        'file://{here}/copy',
        '{here}/copy',
    ],
    ids=str,
)
def test_a_logdir_as_people_give_it(copy, monkeypatch, capsys, given):
    monkeypatch.chdir(copy.parent)
    if isinstance(given, str):
        given = given.format(here=copy.parent)
    assert report.main(given) == 0
    page_path = copy / 'slimguard' / 'report.html'
    assert capsys.readouterr().out == '%s\n' % page_path
    seen = Seen(page_path.read_text(encoding='utf-8'))
    assert seen.of('path', class_='curve') and len(seen.of('article')) == 3
    assert 'copy' in seen.words
    assert os.listdir(str(copy.parent)) == ['copy']


def test_a_logdir_with_spaces_and_letters_of_all_kinds(copy):
    logdir = copy.parent / 'größe 100% #1?'
    copy.rename(logdir)
    output, picture = logdir / 'ä b.html', logdir / '%d.png'
    assert report.main(logdir, output=output, png=str(picture).encode()) == 0
    seen = Seen(output.read_text(encoding='utf-8'))
    assert seen.of('path', class_='curve') and len(seen.of('article')) == 3
    assert "python -m slimguard replay 'größe 100% #1?/slimguard/incident-" in seen.text
    assert picture.exists()


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
    assert seen.of('path', class_='curve')
    assert '3 incidents: 1 raised, 1 rolled back, 1 skipped.' in seen.text
    with tf.io.gfile.GFile(logdir + '/x.png', 'rb') as file:
        assert pixels(file.read()).shape[1] == 1200
    assert report.main('ram://nowhere') == 2
    assert "there is no directory 'ram://nowhere'" in capsys.readouterr().err


def test_a_torn_event_file_and_a_torn_record_are_said(copy):
    (events,) = copy.glob('events.out.tfevents.*')
    events.write_bytes(events.read_bytes()[:-5])
    with open(record_file.path_in(str(copy)), 'a') as file:
        file.write('{"step": 1')
    seen = see(copy)
    assert len(seen.of('path', class_='curve')) >= 2
    assert events.name + ' was read only in part: ' in seen.text
    assert '1 line of the record could not be read; a kill can cut one short.' in seen.text


EXTREMES = [
    [1e-280, 1e308],
    [5e-324, 1.0],
    [5e-324],
    [5e-324, 1e-323, 0.0],
    [-1.7976931348623157e308, 1.7976931348623157e308],
    [1.7976931348623157e308] * 3,
    [1e308, 1e307, -1.0, 1e-310],
    [-2.5, -1e-300],
    [0.0],
    [7.0, 7.0 + 1e-15],
]


@pytest.mark.parametrize('losses', EXTREMES, ids=str)
@pytest.mark.parametrize('first', [0, 2**62])
def test_losses_of_any_size_make_a_page_and_a_picture(tmp_path, losses, first):
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(str(tmp_path))
        for step, loss in enumerate(losses):
            value = tf1.Summary.Value(tag='loss', tensor=tf1.make_tensor_proto(np.array(loss)))
            writer.add_summary(tf1.Summary(value=[value]), first + step)
        writer.close()
    record(tmp_path, line(loss=losses[0], step=10**15 - 1), line(loss=losses[-1], step=0))
    seen = see(tmp_path, png=str(tmp_path / 'x.png'))
    assert len(seen.of('path', class_='curve')) == 2
    assert len(seen.of('svg', class_='mark')) == (1 if first else 2)  # on a long axis they meet
    places = re.findall('[-\\d.]+', seen.of('path', class_='curve')[1]['d'])
    assert len(places) == 2 * max(2, len(losses))
    assert all(0 <= float(place) <= 1000 for place in places)
    for tag, attributes in seen.elements:
        if tag in ('line', 'text', 'svg', 'rect'):
            assert not re.search('nan|inf', ' '.join(map(str, attributes.values())))


# Bundles that are not as they should be.


@pytest.mark.parametrize(
    'error',
    [
        zlib.error('x'),
        struct.error('x'),
        NotImplementedError('x'),
        MemoryError(),
        AssertionError('x'),
        tf.errors.DataLossError(None, None, 'x'),
        UnicodeDecodeError('utf-8', b'\xff', 0, 1, 'x'),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize('where', ['read', 'drawn'])
def test_whatever_a_bundle_raises_only_its_place_says_so(sound_and_not, monkeypatch, error, where):
    logdir, bad = sound_and_not

    def fail(*args):
        raise error

    if where == 'drawn':
        real, name = words.sentence, os.path.basename(bad)
        monkeypatch.setattr(words, 'sentence', lambda it: fail() if it.name == name else real(it))
    else:
        real = bundle.read
        monkeypatch.setattr(bundle, 'read', lambda p: fail() if p == bad else real(p))
    seen = see(logdir, png=str(logdir / 'x.png'))
    assert len(seen.of('article')) == 1
    assert len(seen.of('p', class_='broken')) == 1
    assert (logdir / 'x.png').exists()
    assert re.search('incident-.* cannot be (read|shown): ', seen.text)


LONG = '\u202ename\x00' * 20000


def without_end(said):
    """All that has no natural length, very long."""
    output = said['diagnosis']['output']
    output.update(dtype=LONG)
    said['incident'].update(reason=LONG, action=LONG, restored=LONG, tensors=[LONG])
    said['versions'] = {LONG: LONG}
    said['diagnosis'].update(
        trouble=LONG,
        tensor=LONG,
        op_type=LONG,
        forward_op=LONG,
        not_seen=[LONG] * 10,
        line={'file': LONG, 'number': LONG, 'function': LONG, 'text': LONG},
        inputs=[{'name': LONG, 'range': output}] * 10,
        positions=[[[0] * 10, 'NaN']] * 100,
    )
    for row in said['diagnosis']['ranges'][:20]:
        row['op'] += LONG


def ranges_without_end(name):
    def change(said):
        row = said['diagnosis']['ranges'][0]
        rows = [dict(row, op=name % number) for number in range(20000)]
        said['diagnosis']['ranges'] = rows

    return change


@pytest.mark.parametrize(
    'change',
    [
        without_end,
        ranges_without_end('op_%d'),
        ranges_without_end('net/block_%d/unit/conv'),
        lambda said: said['diagnosis']['ranges'][0].update(op='a/' * 400000 + 'b'),
    ],
    ids=['long words', 'many ops', 'many scopes', 'a deep scope'],
)
def test_a_bundle_without_measure_has_a_page_that_opens(sound_and_not, change):
    logdir, path = sound_and_not
    test_bundle.edit_json(path, change)
    seen = see(logdir, png=str(logdir / 'x.png'))
    assert len(seen.of('article')) == 2
    assert os.path.getsize(str(logdir / 'slimguard' / 'report.html')) < 2e6
    assert pixels((logdir / 'x.png').read_bytes()).shape[0] < 10000


def test_words_without_end_in_the_record_are_cut(tmp_path):
    words = dict.fromkeys(('action', 'reason', 'restored', 'worker'), LONG[:30000])
    record(tmp_path, *[line(step=step, **words) for step in range(20)])
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(str(tmp_path))
        value = tf1.Summary.Value(tag='loss ' + LONG, simple_value=1.0)
        writer.add_summary(tf1.Summary(value=[value]), 1)
        writer.close()
    seen = see(tmp_path, png=str(tmp_path / 'x.png'))
    assert len(rows_of(seen)) == 20
    assert os.path.getsize(str(tmp_path / 'slimguard' / 'report.html')) < 1e6


def test_a_page_full_of_pictures_of_noise_opens_on_a_phone(copy):
    it = report_data.gather(str(copy)).bundles[0]
    noise = np.random.RandomState(0).uniform(0, 1, [16, 160, 160, 4]).astype(np.float32)
    noise[np.random.RandomState(1).uniform(size=noise.shape) < 0.01] = np.nan
    room = report_data._MOST_IMAGES // 20
    sheets = samples.sheets({name: noise for name in 'abcd'}, room=room)
    assert len(sheets) == 4 and all(sheet.samples for sheet in sheets)
    found = report_data.gather(str(copy))._replace(bundles=[it._replace(sheets=sheets)])
    assert len(html.render(found)) < 20e6 / 20


# The command.


def test_the_command_writes_the_page_and_the_picture_whole(copy, tmp_path):
    output, picture = tmp_path / 'a.html', tmp_path / 'a.png'
    output.write_text('old')
    command = '-m', 'slimguard', 'report', copy, '--output', output, '--png', picture
    run = forked_python(*command)
    assert (run.returncode, run.stdout) == (0, '%s\n%s\n' % (output, picture)), run.stderr
    assert harmless(Seen(output.read_text(encoding='utf-8')))
    shown = pixels(picture.read_bytes())
    for color in ((255, 0, 144), (31, 111, 196), (200, 16, 46), (51, 65, 78)):
        assert np.count_nonzero(np.all(shown[:, :, :3] == color, axis=2)) > 20
    assert sorted(os.listdir(str(tmp_path))) == ['a.html', 'a.png', 'copy']
    # Nothing was left beside the bundles either.
    assert not [n for n in os.listdir(str(copy / 'slimguard')) if n.startswith('.')]


@pytest.mark.parametrize(
    'output, why',
    [
        ('nowhere/a.html', 'cannot be written: there is no directory'),
        ('folder', 'is a directory; expected a file, such as'),
        ('file/a.html', 'cannot be written'),
        ('', ' is empty; expected the path of a file'),
    ],
)
@pytest.mark.parametrize('option', ['output', 'png'])
def test_what_cannot_be_written_is_an_error(copy, monkeypatch, capsys, output, why, option):
    monkeypatch.chdir(copy.parent)
    (copy.parent / 'folder').mkdir()
    (copy.parent / 'file').write_text('')
    assert report.main(str(copy), **{option: output}) == 2
    said = capsys.readouterr().err
    assert why in said and said.startswith('slimguard: ') and output in said
    assert '.making-' not in said
    assert sorted(os.listdir(str(copy.parent))) == ['copy', 'file', 'folder']


def test_a_device_is_written_to_and_stays_one(copy, tmp_path):
    assert report.main(str(copy), output='/dev/null', png='/dev/null') == 0
    assert stat.S_ISCHR(os.stat('/dev/null').st_mode)
    assert not [n for n in os.listdir('/dev') if n.startswith('null.')]


def test_a_pipe_gets_the_page_and_one_that_nobody_reads_is_an_error(copy, tmp_path, capsys):
    fifo = tmp_path / 'fifo'
    os.mkfifo(str(fifo))
    assert report.main(str(copy), output=str(fifo)) == 2
    assert '%s cannot be written: nobody reads from it' % fifo in capsys.readouterr().err
    read = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    while report.main(str(copy), output=str(fifo)) != 0:  # until the reader has opened it
        pass
    reader.join()
    assert read[0].startswith('<!doctype html>') and read[0].endswith('</html>\n')
    assert stat.S_ISFIFO(os.stat(str(fifo)).st_mode)


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


@pytest.mark.parametrize('mask', [0o022, 0o077])
def test_the_page_may_be_read_by_whom_the_umask_lets(copy, mask):
    before = os.umask(mask)
    try:
        see(copy)
    finally:
        os.umask(before)
    mode = os.stat(str(copy / 'slimguard' / 'report.html')).st_mode
    assert stat.S_IMODE(mode) == 0o666 & ~mask


def test_a_path_that_the_terminal_has_no_letters_for_is_no_error(copy, tmp_path, monkeypatch):
    monkeypatch.setenv('PYTHONIOENCODING', 'ascii')
    logdir = tmp_path / 'größe'
    copy.rename(logdir)
    run = forked_python('-m', 'slimguard', 'report', logdir, text=False)
    assert run.returncode == 0, run.stderr
    assert b'gr\\xf6\\xdfe' in run.stdout
    assert (logdir / 'slimguard' / 'report.html').exists()


def test_without_matplotlib_the_error_names_the_extra(copy, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    monkeypatch.delitem(sys.modules, 'slimguard.report.png', raising=False)
    monkeypatch.delattr(slimguard.report, 'png', raising=False)
    assert report.main(str(copy), png=str(copy / 'a.png')) == 2
    said = capsys.readouterr().err
    assert "install it with: pip install 'slimguard[report]'" in said
    assert not (copy / 'a.png').exists()
    # And the page needs none.
    assert report.main(str(copy)) == 0


WITHOUT_TENSORFLOW = """
import sys
from slimguard.__main__ import main
try:
    main(sys.argv[1:])
finally:
    assert 'tensorflow' not in sys.modules
"""


@pytest.mark.parametrize(
    'arguments, code, says',
    [
        ('report --help', 0, '--png FILE'),
        ('report', 2, 'LOGDIR'),
        ('report nowhere', 2, "there is no directory 'nowhere'"),
        ('report . --png', 2, '--png'),
    ],
)
def test_help_and_usage_errors_come_without_tensorflow(arguments, code, says):
    run = python('-c', WITHOUT_TENSORFLOW, *arguments.split())
    assert run.returncode == code
    assert says in run.stdout + run.stderr


# In a browser.


def browse(tmp_path, page, *flags):
    """Opens a page in Chromium. Returns what it wrote, and the addresses that it asked for."""
    log = tmp_path / 'net.json'
    run = subprocess.run(
        [
            CHROMIUM,
            *'--headless --no-sandbox --disable-gpu --disable-quic --no-first-run'.split(),
            *'--disable-background-networking --disable-component-update'.split(),
            *'--disable-sync --hide-scrollbars --force-color-profile=srgb'.split(),
            *'--enable-logging=stderr --v=0'.split(),
            # What the browser itself wants of its maker has no way out.
            '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1',
            '--user-data-dir=%s' % (tmp_path / 'profile'),
            '--log-net-log=%s' % log,
            '--virtual-time-budget=1000',
            *flags,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run, asked_for(log.read_text())


def asked_for(log):
    """The addresses of the requests in a net-log that a page made, and not the browser itself."""
    log = json.loads(log)
    start = log['constants']['logEventTypes']['URL_REQUEST_START_JOB']
    requests = [event.get('params', {}) for event in log['events'] if event['type'] == start]
    by_page = [it for it in requests if 'url' in it and it.get('initiator') != 'not an origin']
    return [it['url'] for it in by_page]


in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason='there is no Chromium on this machine')


@in_a_browser
def test_a_browser_shows_it_without_an_error_and_without_a_request(trained, tmp_path):
    output = tmp_path / 'report.html'
    assert report.main(str(trained), output=str(output)) == 0
    run, asked = browse(tmp_path, output, '--dump-dom')
    assert asked == []
    assert 'CONSOLE' not in run.stderr
    seen = Seen(run.stdout)
    assert harmless(seen)
    assert len(seen.of('path', class_='curve')) >= 2
    assert len(seen.of('image', class_='pixels')) == 3 * 6
    assert seen.of('tr', id='row-3')


@in_a_browser
@pytest.mark.parametrize(
    'scheme, width, paper, curve, skip',
    [
        ('light', 1100, (251, 250, 247), (51, 65, 78), (31, 111, 196)),
        ('dark', 500, (22, 23, 25), (201, 211, 220), (99, 168, 242)),
    ],
)
def test_a_browser_draws_it(trained, tmp_path, scheme, width, paper, curve, skip):
    output, shot = tmp_path / 'report.html', tmp_path / 'shot.png'
    assert report.main(str(trained), output=str(output)) == 0
    browse(
        tmp_path,
        output,
        '--screenshot=%s' % shot,
        '--window-size=%d,4000' % width,
        '--blink-settings=preferredColorScheme=%d' % ['dark', 'light'].index(scheme),
    )
    shown = pixels(shot.read_bytes())[:, :, :3]
    assert tuple(shown[5, 5]) == paper

    def count(color):
        return np.count_nonzero(np.abs(shown - color).max(axis=2) <= 8)

    assert count(curve) > 200
    assert count(skip) > 60
    # A pixel of 8 x 8, three times.
    assert count((255, 0, 144)) > 3 * 25
    # Nothing is wider than the window: the right edge is paper, all the way down.
    assert np.all(shown[:, -4:] == paper)


@in_a_browser
def test_a_browser_that_asks_for_something_would_be_seen(tmp_path):
    """The check above can fail, and the page's own policy is what forbids it."""
    address = 'http://127.0.0.1:9/x.png'
    plain = tmp_path / 'plain.html'
    plain.write_text('<img src="%s"><script>undefined.x</script>' % address)
    run, asked = browse(tmp_path, plain, '--dump-dom')
    assert address in asked
    assert 'CONSOLE' in run.stderr
    empty = report_data.ReportData('x', '', None, [], [], [])
    guarded = tmp_path / 'guarded.html'
    guarded.write_text(html.render(empty).replace('<main>', '<main><img src="%s">' % address))
    run, asked = browse(tmp_path, guarded, '--dump-dom')
    assert address in run.stdout and asked == []
    assert 'Content Security Policy' in run.stderr
