"""The cookbook: each line makes the NaN, slimguard says what the page says, and the cure helps."""

import http.server
import json
import re
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.incidents import advice
from tests.helpers.children import ROOT
from tests.helpers.snippets import names_of_docs, snippet_named

tf1 = tf.compat.v1
PAGE = (ROOT / 'docs' / 'cookbook.md').read_text(encoding='utf-8')
BLOCK = re.compile(r'^<!-- cookbook(?:: (.*?))? -->\n```(\w+)\n(.*?)^```$', re.M | re.S)


def recipes():
    """Yields the name, the bad code, the message and the cure of each section."""
    blocks = [found.groups() for found in BLOCK.finditer(PAGE)]
    for (name, python, bad), (_, text, said), (_, also, cure) in zip(*[iter(blocks)] * 3):
        assert name and (python, text, also) == ('python', 'text', 'python'), name
        yield pytest.param(name, bad, said.strip(), cure, id=name)


def with_row(row):
    """A batch of four samples, the third of which is `row`."""
    batch = np.array([[1, 2], [2, 1], [0, 0], [3, 1]], np.float32)
    batch[2] = row
    return batch


# The values that a recipe feeds in the bad step, if they differ from the plain ones.
FED = {
    'log of 0': dict(features=with_row([200, -200])),
    'scale': dict(labels=with_row([200, 100])),
    'weights': dict(weights=np.zeros(4)),
    'norm': dict(features=with_row([0, 0])),
    'mask': dict(mask=with_row([0, 0])),
    'variance': dict(features=1035.25 + np.array([[0, 0], [0, 1e-3], [0, 0], [5e-4, 0]])),
    'nothing': dict(weights=np.zeros(4)),
    'sample': dict(features=with_row([np.nan, 1])),
    'exp': dict(features=with_row([200, 1])),
}


def train(code, fed):
    """Trains one step of `code`. Returns the loss, and the error that ended it or None."""
    names = {'tf': tf1, 'np': np}
    feed = {}
    plain = dict(features=with_row([1, 1]), labels=with_row([0, 1]), mask=with_row([1, 1]))
    for name, value in dict(plain, weights=np.ones(4)).items():
        names[name] = tf1.placeholder(tf.float32, [None] + list(value.shape[1:]), name=name)
        feed[names[name]] = fed.get(name, value)
    names['w'] = tf1.get_variable('w', initializer=np.eye(2, dtype=np.float32))
    names['scale'] = tf1.get_variable('scale', initializer=np.zeros(2, np.float32))
    names['half_weights'] = tf1.get_variable('half', initializer=np.zeros([2, 1], np.float16))
    names['logits'] = tf.matmul(names['features'], names['w'])
    names['losses'] = tf.reduce_sum(tf.square(names['logits']), axis=1)
    names['frames'] = tf.reshape(tf.tile(names['logits'], [1, 2]), [4, 1, 4])[:3]
    symbols = tf.constant([[0, 0], [0, 1], [0, 2]], tf.int64)
    names['transcript'] = tf1.SparseTensor(symbols, tf.constant([1, 1, 2]), [1, 3])
    names['optimizer'] = tf1.train.GradientDescentOptimizer(1e-4)
    step = tf1.train.get_or_create_global_step()
    exec(code, names)
    loss = names['loss']
    train_op = slimguard.guard(names['optimizer'].minimize(loss, global_step=step), loss=loss)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        with slimguard.watch(session) as watched:
            try:
                return watched.run([train_op, loss], feed)[1], None
            except slimguard.NanLossError as error:
                return None, error


def test_the_functions_that_the_report_advises_exist():
    for told in advice.BY_CAUSE.values():
        for path in re.findall(r'tf\.([\w.]+)\(', told):
            found = tf1
            for name in path.split('.'):
                found = getattr(found, name)


def test_each_section_of_the_page_has_the_report_advise_something_of_its_own():
    for recipe in recipes():
        name, _, said, _ = recipe.values
        missing = 'no key of BY_CAUSE in slimguard/incidents/advice.py is part of %r, which %r says'
        assert advice.for_cause(said), missing % (said, name)


@pytest.mark.every_cell
@pytest.mark.parametrize('name, bad, said, cure', [*recipes()])
def test_the_page_shows_what_is_said_and_what_helps(name, bad, said, cure):
    fed = FED.get(name, {})
    _, error = train(bad, fed)
    assert said in str(error)
    with tf.Graph().as_default():
        loss, error = train(cure, fed)
    assert error is None and np.isfinite(loss)


def test_no_section_is_left_out():
    assert len(list(recipes())) == len(re.findall(r'cookbook: ', PAGE)) >= 11


class Chat(http.server.BaseHTTPRequestHandler):
    """A webhook that keeps the messages sent to it."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.server.told.append(json.loads(body.decode()))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Prints nothing."""


def test_the_webhook_of_the_docs_is_told_of_each_incident(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('no_proxy', '127.0.0.1')
    recipe = snippet_named(ROOT / 'docs' / 'policies.md', 'webhook')
    with http.server.HTTPServer(('127.0.0.1', 0), Chat) as server:
        server.told = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = 'http://127.0.0.1:%d/' % server.server_port
        for logdir, known in (('told', url), ('lost', 'http://127.0.0.1:1/')):
            with tf.Graph().as_default():
                logdir = str(tmp_path / logdir)
                exec(recipe, dict(names_of_docs(), URL=known, logdir=logdir))
            (incident,) = slimguard.read_incidents(logdir)
            assert incident.action == 'skip'
        server.shutdown()
    assert server.told == [{'text': 'step 4: ' + incident.cause}]
    assert 'bad data' in incident.cause
    assert 'slimguard webhook: ' in capsys.readouterr().out
