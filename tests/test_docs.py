"""The docs: every snippet runs, every link leads somewhere."""

import functools
import re
import shlex
import subprocess

import pytest

from tests.helpers.children import ROOT, forked_python
from tests.helpers.snippets import PAGES, SCRIPT, SCRIPT_OF_TF1, snippets_of

# Snippets that .ci/run and tests/test_examples.py run. Those of the cookbook run in
# tests/test_cookbook.py.
NAMED = {
    'test-command',
    'try-command',
    'example-table',
    'explode-command',
    'cluster-commands',
    'a-message',
    'webhook',
}
# A training as the docs have it: it leaves a record with one incident, and a bundle.
TRAINING = """
import numpy as np, slimguard, tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
bad = np.ones([4, 3], np.float32)
bad[1, 2] = 0
drawn = [0]


def draw():
    drawn[0] += 1
    return bad if drawn[0] == 5 else np.ones([4, 3], np.float32)


x = tf.ensure_shape(tf.py_func(draw, [], tf.float32), [4, 3])
loss = tf.reduce_mean(tf.log(x) + tf.square(tf.matmul(x, tf.get_variable('w', [3, 1]))))
train_op = slimguard.create_train_op(loss, tf.train.GradientDescentOptimizer(0.01))
slimguard.train(train_op, 'logs', number_of_steps=8, on_nan='skip')
"""


def pages_with(language):
    pages = [
        page
        for page in PAGES
        if any(snippet.is_run and snippet.language == language for snippet in snippets_of(page))
    ]
    return pytest.mark.parametrize('page', pages, ids=[page.stem for page in pages])


def test_every_block_says_what_it_is_and_why_it_is_not_run():
    for page in PAGES:
        for snippet in snippets_of(page):
            where = '%s:%d' % (page.name, snippet.line)
            assert snippet.language in ('python', 'bash', 'text'), where
            reason = re.match(r'not run: \w.{10,}$|cookbook', snippet.marker)
            assert not snippet.marker or reason or snippet.marker in NAMED, where
    assert sum(snippet.is_run for page in PAGES for snippet in snippets_of(page)) > 30


@pages_with('python')
def test_the_python_of_a_page_runs(page, tmp_path):
    script = ROOT / 'tests' / 'helpers' / 'snippets.py'
    done = forked_python(script, page, cwd=tmp_path, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-6000:]


def test_the_test_that_contributors_are_shown_passes():
    names = {}
    (shown,) = [it for it in snippets_of(ROOT / 'CONTRIBUTING.md') if it.language == 'python']
    exec(shown.text, names)
    names['test_a_nan_in_the_batch_changes_no_weight']()


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    """A working directory with the files that the docs' commands name."""
    folder = tmp_path_factory.mktemp('world')
    (folder / 'train.py').write_text(SCRIPT)
    (folder / 'train_tf1.py').write_text(SCRIPT_OF_TF1)
    (folder / 'make_logs.py').write_text(TRAINING)
    done = forked_python('make_logs.py', cwd=folder, stderr=subprocess.STDOUT)
    assert (folder / 'logs' / 'slimguard' / 'step-4').is_dir(), done.stdout
    return folder


@functools.lru_cache(maxsize=None)
def run_once(command, folder):
    """Runs a command; the next call with the same command returns the same result."""
    words = shlex.split(command, comments=True)
    if words[:1] == ['slimguard']:
        words[:1] = ['python', '-m', 'slimguard']
    assert words[0] == 'python', command
    return forked_python(
        *words[1:],
        cwd=folder,
        input='',
        stderr=subprocess.STDOUT,
        finds='tensorflow',
    )


@pages_with('bash')
def test_the_commands_of_a_page_run(page, world):
    for snippet in snippets_of(page):
        if snippet.is_run and snippet.language == 'bash':
            for line in filter(None, map(str.strip, snippet.text.splitlines())):
                command = ' '.join(shlex.split(line, comments=True))
                done = run_once(command, world)
                assert done.returncode == 0, '%s\n%s' % (line, done.stdout[-3000:])


def anchors_of(page):
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r'^#+ (.*)$', page.read_text(encoding='utf-8'), re.MULTILINE)
    slugs = (re.sub(r'[^\w\s-]', '', heading.lower()).strip() for heading in headings)
    return {re.sub(r'\s', '-', slug) for slug in slugs}


@pytest.mark.parametrize('page', [*PAGES, ROOT / 'CONTRIBUTING.md', ROOT / 'CHANGELOG.md'])
def test_links_lead_somewhere(page):
    text = re.sub(r'^```.*?^```$', '', page.read_text(encoding='utf-8'), flags=re.M | re.S)
    for target in re.findall(r'\]\(([^)\s]+)\)', text):
        if re.match(r'[a-z]+:', target):
            continue
        path, _, anchor = target.partition('#')
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), '%s: %s' % (page.name, target)
        assert not anchor or anchor in anchors_of(there), '%s: %s' % (page.name, target)


def test_the_readme_is_short_and_names_every_page():
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    assert len(text.splitlines()) <= 200
    site = (ROOT / 'mkdocs.yml').read_text(encoding='utf-8')
    for page in PAGES[1:]:
        assert page.name in site
        assert page.name == 'README.md' or 'docs/' + page.name in text


def test_what_the_docs_call_files_of_the_repository_is_there():
    named = r'`(?:python )?((?:examples|benchmarks|tests|slimguard|docs)/[\w/.-]+\.\w+)'
    for page in PAGES:
        for path in re.findall(named, page.read_text(encoding='utf-8')):
            assert (ROOT / path).exists(), '%s: %s' % (page.name, path)
