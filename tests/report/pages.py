"""Log directories to report on, and looks at the pages that come out."""

import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from slimguard.report import report

HOSTILE = '<img src=x onerror=alert(1)>"\'</title></style><script>alert(2)</script>&$\\frac$'
CHROMIUM = next(
    filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None
)


def in_a_browser(test):
    """Marks a test that starts Chromium; it is skipped if there is none."""
    there = pytest.mark.skipif(CHROMIUM is None, reason='there is no Chromium on this machine')
    return pytest.mark.full(there(test))


def line(**said):
    """A line of a record."""
    usual = {'step': 4, 'loss': 'nan', 'reason': 'x', 'tensors': [], 'strategy': 'hook'}
    return json.dumps(dict(usual, time=1e9, **said) if 'time' not in said else {**usual, **said})


def record(logdir, *lines):
    """Makes a log directory with a record of these lines."""
    path = logdir / 'slimguard' / 'incidents.jsonl'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join(lines) + '\n')
    return path


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


def see(logdir, **kwargs):
    """Makes the report and looks at it."""
    assert report.main(str(logdir), **kwargs) == 0
    return Seen(page_of(logdir))


def page_of(logdir):
    return (logdir / 'slimguard' / 'report.html').read_text(encoding='utf-8')


def rows_of(seen):
    """The rows of the table of incidents."""
    return [a for a in seen.of('tr') if a.get('id', '').startswith('row')]


def harmless(seen):
    """Asserts that a page runs no script, and that no element or style of it loads anything."""
    names = {tag for tag, _ in seen.elements}
    bad = {'script', 'img', 'iframe', 'link', 'object', 'embed', 'base', 'form', 'foreignobject'}
    assert not names & bad
    for _, attributes in seen.elements:
        assert not [name for name in attributes if name.startswith('on')]
        for name in ('src', 'xlink:href', 'action', 'srcset'):
            assert name not in attributes
        assert re.match('#|data:image/png;base64,|$', attributes.get('href', ''))
        style = attributes.get('style', '')
        assert re.match(r"[-\w:; .,#()']*$", style) and 'url' not in style, style
    assert len(seen.of('style')) == 1  # none of a chart, since it would apply to the whole page
    (policy,) = seen.of('meta', **{'http-equiv': 'Content-Security-Policy'})
    assert policy['content'].startswith("default-src 'none'; img-src data:; style-src")
    return True


def pixels(png):
    from matplotlib import image

    return (image.imread(io.BytesIO(png)) * 255).round().astype(int)


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
            # Blocks the browser's own requests to its maker.
            '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1',
            '--user-data-dir=%s' % (tmp_path / 'profile'),
            '--log-net-log=%s' % log,
            '--virtual-time-budget=1000',
            *flags,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return run, _asked_for(json.loads(log.read_text()))


def _asked_for(log):
    """The addresses of requests in a net-log, without those of the browser itself."""
    start = log['constants']['logEventTypes']['URL_REQUEST_START_JOB']
    requests = [event.get('params', {}) for event in log['events'] if event['type'] == start]
    by_page = [it for it in requests if 'url' in it and it.get('initiator') != 'not an origin']
    return [it['url'] for it in by_page]
