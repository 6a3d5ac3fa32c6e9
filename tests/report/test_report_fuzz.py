"""The report of anything: mutated bundles and records make a page, in bounded size."""

import copy
import json
import os
import pathlib
import random
import re
import shutil

import pytest

from slimguard.report import report

BUNDLE = pathlib.Path(__file__).parents[1] / 'data' / 'made_by_tf115'
MUTANTS = 10  # of each seed
HISTORY = {
    'gradients': [['conv/weights'], ['conv/biases', 'conv/beta']],
    'step': [1, 2, 3, 3],
    'good': [True, True, True, False],
    'loss': [2.0, 1.0, 0.5, 'NaN'],
    'learning_rate': [0.1, 0.1, 0.1, 0.1],
    'gradient_norm': [1.0, 2.0, 1e9, 'Infinity'],
    'gradient_norms': [[1.0, 0.0], [2.0, 1.0], [1e9, 3.0], ['NaN', 'Infinity']],
}
STRANGE = [
    *[None, True, -1, 0, 1, 0.5, 2**63, 10**400, 1e308, 5e-324, 1e999, float('nan')],
    *['', 'x', 'NaN', '-Infinity', '\ud800\u202e\x00', '<b>', 'a/' * 3000, 'x' * 10000],
    *[[], {}, [[1]], [[[[]]]], {'a': {'b': [1]}}],
]


def mutate_json(pick, said):
    """The text of `said`, with one to three places of it changed."""
    said = copy.deepcopy(said)
    for _ in range(pick.randint(1, 3)):
        parent, key = place_in(pick, said)
        how = pick.random()
        if how < 0.15:
            del parent[key]
        elif how < 0.3 and isinstance(parent, list):
            parent.extend([parent[key]] * pick.choice([1, 100, 3000]))
        else:
            parent[key] = pick.choice(STRANGE)
    return json.dumps(said)


def place_in(pick, said):
    while True:
        key = pick.choice(list(said)) if isinstance(said, dict) else pick.randrange(len(said))
        if not (isinstance(said[key], (dict, list)) and said[key]) or pick.random() < 0.2:
            return said, key
        said = said[key]


def mutate_bytes(pick, content):
    content = bytearray(content)
    for _ in range(pick.randint(1, 4)):
        at, how = pick.randrange(len(content) + 1), pick.random()
        if how < 0.5:
            content[at : at + 1] = bytes([pick.randrange(256)])
        elif how < 0.7:
            del content[at : at + pick.randint(1, 50)]
        elif how < 0.85:
            content[at:at] = bytes(pick.randrange(256) for _ in range(pick.randint(1, 30)))
        else:
            del content[at:]
    return bytes(content)


def report_of(logdir, codes=(0,), png=False):
    """Makes the report of a mutant; returns the page."""
    picture = logdir / 'x.png'
    assert report.main(logdir, png=picture if png else None) in codes
    assert not png or picture.read_bytes().startswith(b'\x89PNG')
    content = (logdir / 'slimguard' / 'report.html').read_bytes()
    assert len(content) < 20e6
    text = content.decode('utf-8')
    # Nothing of what was put in is left out of its escapes, and no place in a chart is a NaN.
    assert not re.search('[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ufffe\uffff]', text)
    assert '<b>' not in text
    for said in re.findall(r' (?:x|y|d|width|height|transform|viewBox)="([^"]*)"', text):
        assert not re.search('nan|inf', said)
    return text


@pytest.mark.full
@pytest.mark.parametrize('seed', range(3))
def test_mutated_bundles(tmp_path, seed):
    said = json.loads((BUNDLE / 'incident.json').read_text())
    said['history'] = HISTORY
    damaged = 0
    for number in range(MUTANTS):
        pick = random.Random('bundle %d %d' % (seed, number))
        folder = tmp_path / ('%d' % number) / 'slimguard' / 'incident-1'
        shutil.copytree(str(BUNDLE), str(folder))
        if pick.random() < 0.6:
            (folder / 'incident.json').write_text(mutate_json(pick, said))
        else:
            path = folder / pick.choice(sorted(os.listdir(str(BUNDLE))))
            path.write_bytes(mutate_bytes(pick, path.read_bytes()))
        text = report_of(folder.parent.parent, png=number % MUTANTS == 0)
        # Shown whole, or said to be damaged, and never just gone.
        assert text.count('<article') + text.count('class="broken"') == 1
        damaged += 'class="broken"' in text
        shutil.rmtree(str(folder))
    assert damaged


def lines_of(pick):
    for step in range(4):
        said = {'step': step, 'loss': 'nan', 'reason': 'not finite: loss', 'tensors': ['loss']}
        said.update(strategy='hook', time=1e9 + step, action='skip', restored='model.ckpt-1')
        yield mutate_json(pick, said) if pick.random() < 0.5 else json.dumps(said)


@pytest.mark.parametrize('seed', range(3))
def test_mutated_records(tmp_path, seed):
    for number in range(MUTANTS):
        pick = random.Random('record %d %d' % (seed, number))
        path = tmp_path / ('%d' % number) / 'slimguard' / 'incidents.jsonl'
        path.parent.mkdir(parents=True)
        content = ''.join(line + '\n' for line in lines_of(pick)).encode()
        path.write_bytes(mutate_bytes(pick, content) if pick.random() < 0.5 else content)
        text = report_of(path.parent.parent, codes=(0, 1), png=number % MUTANTS == 0)
        assert '>None<' not in text and 'There is no record' not in text
