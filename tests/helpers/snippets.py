"""Finds the snippets of the docs, and runs them as a reader would who pastes them.

As a program, ``snippets.py PAGE`` runs the Python of a page: each snippet in a graph of its own,
and in a folder of its own below the working directory. The names in the docs are those of a small
training, whose input has 40 batches; the fifth is NaN. ``snippets.py NOTEBOOK`` runs the cells of a
notebook, one after the other.
"""

import json
import os
import pathlib
import re
import sys
import tempfile
from typing import List, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]


class Snippet(NamedTuple):
    """A fenced block.

    Attributes:
      language: the word after the fence.
      text: its text.
      line: the number of its first line.
      marker: the comment on the line above the fence, such as ``not run: it installs packages``.
    """

    language: str
    text: str
    line: int
    marker: str

    @property
    def is_run(self):
        """Whether it is run here. One with a name is run by the test that looks for the name."""
        return self.language in ('python', 'bash') and not self.marker


_SNIPPET = re.compile(r'(?:^<!-- (.*?) -->\n)?^```(\w*)\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def snippets_of(page: pathlib.Path) -> List[Snippet]:
    text = page.read_text(encoding='utf-8')
    return [
        Snippet(found.group(2), found.group(3), text.count('\n', 0, found.start(3)) + 1, marker)
        for found in _SNIPPET.finditer(text)
        for marker in [found.group(1) or '']
    ]


def snippet_named(page: pathlib.Path, name: str) -> str:
    """The text of the snippet with that marker."""
    (text,) = [snippet.text for snippet in snippets_of(page) if snippet.marker == name]
    return text


_SCRIPT = """
import argparse
import numpy as np
import %s

parser = argparse.ArgumentParser()
parser.add_argument('--batch_size', type=int, default=4)
args = parser.parse_args()


def main():
    x = tf.placeholder(tf.float32, [None])
    loss = tf.reduce_mean(tf.square(x - tf.get_variable('v', [])))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(8):
            session.run(train_op, {x: np.full(args.batch_size, np.nan if step == 4 else 1.0)})
    print('trained')


if __name__ == '__main__':
    main()
"""

# Scripts that do not import slimguard. The one for TensorFlow 1 has no bad batch: it runs under the
# default policy, which would end it.
SCRIPT = _SCRIPT % 'tensorflow.compat.v1 as tf; tf.disable_v2_behavior()'
SCRIPT_OF_TF1 = (_SCRIPT % 'tensorflow as tf').replace('np.nan if step == 4', '2.0 if step == 4')


def names_of_docs():
    """The objects that the docs' names stand for; made anew for each snippet."""
    import numpy as np
    import tensorflow.compat.v1 as tf
    import tf_slim as slim

    import slimguard

    def batches():
        for number in range(40):
            yield np.full([4, 3], np.nan if number == 4 else 1.0, np.float32)

    drawn, fed = batches(), batches()
    x = tf.py_func(lambda: next(drawn), [], tf.float32, stateful=True)
    x = tf.placeholder_with_default(tf.ensure_shape(x, [4, 3]), [4, 3])
    weights = tf.get_variable('w', [3, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - 1.0))
    global_step = tf.train.get_or_create_global_step()
    optimizer = tf.train.MomentumOptimizer(0.01, 0.9)
    return {
        '__name__': '__main__',
        'tf': tf,
        'slim': slim,
        'slimguard': slimguard,
        'loss': loss,
        'total_loss': loss,
        'optimizer': optimizer,
        'global_step': global_step,
        'train_op': slimguard.create_train_op(loss, optimizer, check_numerics=False),
        'halve_learning_rate': tf.no_op(),
        'my_saver': tf.train.Saver(),
        'next_batch': lambda: {x: next(fed)},
        'logdir': 'logs',
    }


def _run_page(page):
    import tensorflow.compat.v1 as tf

    folder = os.getcwd()
    for snippet in snippets_of(page):
        if not snippet.is_run or snippet.language != 'python':
            continue
        print('%s:%d' % (page.name, snippet.line), flush=True)
        tf.reset_default_graph()
        os.chdir(tempfile.mkdtemp(dir=folder))
        pathlib.Path('train_mobilenet.py').write_text(SCRIPT)
        # The empty lines give each line the number that it has on the page, for tracebacks.
        code = compile('\n' * (snippet.line - 1) + snippet.text, str(page), 'exec')
        exec(code, names_of_docs())


def _run_notebook(path):
    names = {'__name__': '__main__'}
    for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
        if cell['cell_type'] == 'code':
            exec(compile(''.join(cell['source']), str(path), 'exec'), names)


def main():
    import tensorflow.compat.v1 as tf

    path = pathlib.Path(sys.argv[1])
    del sys.argv[1:]  # a snippet that parses its arguments has none
    sys.path.insert(0, '')  # as at a prompt
    if path.suffix == '.ipynb':
        _run_notebook(path)
    else:
        tf.disable_v2_behavior()
        _run_page(path)


if __name__ == '__main__':
    main()
