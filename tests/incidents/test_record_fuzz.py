"""Records of incidents that somebody or something has spoiled: read, counted, printed, no more.

`python -m tests.incidents.test_record_fuzz [COUNT [SEED]]` tries many more mutants.
"""

import contextlib
import functools
import io
import json
import random
import sys
import tempfile
from unittest import mock

import pytest

from slimguard.__main__ import main
from slimguard.command import parser
from slimguard.incidents import record_file
from slimguard.incidents.incident import Incident

LINES = 6
VALUES = [
    '"garbage"', '[1]', '{}', 'null', 'true', '-1', '1e999', 'NaN', '-Infinity', '9' * 400,
    '9' * 5000, '0.' + '9' * 5000, '"\\ud800\\u202e\\u0000\\u001b[2J"', '"' + 'x' * 70000 + '"',
    '[' * 3000, '{"a":' * 3000, '[[[[1]]]]', '["a", 1]', '"nan"', '[' + '"\\u0000",' * 999 + '""]',
]  # fmt: skip
BYTES = [
    b'\0',
    b'\n',
    b'\r\n',
    b'\xff',
    b'\xef\xbb\xbf',
    b'\x1b[2J',
    b'"',
    b'{',
    b'\\',
    b'\n\n[1]\n',
]


def incidents(count=LINES):
    return [
        Incident(n, n / 2, 'not finite: w%d' % n, ('w%d' % n,), 'hook', 1e9 + n, action='skip')
        for n in range(count)
    ]


def a_record():
    return b''.join(record_file.line_of(incident, 'host:1') for incident in incidents())


def mutant(chance):
    """A spoiled record, and which of its incidents nothing has touched."""
    lines = a_record().splitlines(True)
    touched = set()
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        number = chance.randrange(LINES)
        lines[number] = chance.choice(DAMAGES)(chance, lines[number])
        # A line without its end takes the one after it along.
        touched.update([number, number + 1])
    return b''.join(lines), [n for n in range(LINES) if n not in touched]


def cut(chance, line):
    return line[: chance.randrange(len(line) + 1)]


def flip(chance, line):
    spoiled = bytearray(line)
    for _ in range(chance.choice([1, 3, 30])):
        if spoiled:
            spoiled[chance.randrange(len(spoiled))] ^= 1 << chance.randrange(8)
    return bytes(spoiled)


def insert(chance, line):
    place = chance.randrange(len(line) + 1)
    return line[:place] + chance.choice(BYTES) * chance.choice([1, 1, 100, 5000]) + line[place:]


def replace_value(chance, line):
    try:
        record = json.loads(line.decode('utf-8'))
        key = chance.choice(sorted(record))
        record[key] = '@'
    except (ValueError, AttributeError, IndexError, TypeError, RecursionError):
        return line
    return json.dumps(record).replace('"@"', chance.choice(VALUES)).encode('utf-8') + b'\n'


def repeat(chance, line):
    return line * chance.choice([2, 20])


def noise(chance, line):
    return bytes(chance.randrange(256) for _ in range(chance.choice([1, 100, 10000])))


DAMAGES = [cut, flip, insert, replace_value, replace_value, replace_value, repeat, noise]


def try_one(seed, logdir):
    """Reads and prints a mutant."""
    content, untouched = mutant(random.Random(seed))
    with open(record_file.path_in(logdir), 'wb') as file:
        file.write(content)
    found = record_file.read_record(logdir)
    # What was not touched is read, whatever the other lines are.
    expected = incidents()
    assert all(expected[number] in found.incidents for number in untouched), seed
    code = 2 if found.is_foreign else 0
    for option, most in (('--all', len(found.incidents) + 4), (None, 1000)):
        out, err = printed(logdir, code, option)
        said = out + err
        assert said.replace('\n', '').isprintable(), seed
        assert max(map(len, said.splitlines())) < 1000, seed
        assert len(said.splitlines()) <= most, seed
    out, err = printed(logdir, code, '--json')
    document = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert not err and 'error' in document or len(document['incidents']) == len(found.incidents)
    json.dumps(document, ensure_ascii=False).encode('utf-8')


def printed(logdir, code, option):
    """What the command prints on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    done = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(['incidents', logdir] + ([option] if option else []))
        except SystemExit as left:
            done = left.code
    assert done == code
    return out.getvalue(), err.getvalue()


def try_many(seeds):
    # To make the parser takes longer than to read a record with it.
    make_once = mock.patch.object(parser, 'make', functools.lru_cache(None)(parser.make))
    with tempfile.TemporaryDirectory() as logdir, make_once:
        record_file.IncidentFile(logdir).make()
        for seed in seeds:
            try_one(seed, logdir)


@pytest.mark.full
@pytest.mark.parametrize('count', [80, 1000])
def test_spoiled_records_are_read_as_far_as_they_can_be(count):
    try_many(range(count))


if __name__ == '__main__':
    count, seed = [*map(int, sys.argv[1:]), *(10000, 0)[len(sys.argv) - 1 :]]
    try_many(range(seed, seed + count))
    print('%d mutants: no traceback' % count)
