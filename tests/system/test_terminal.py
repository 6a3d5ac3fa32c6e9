"""What the command line prints: harmless, of bounded width, on any stdout."""

import io
import sys

import pytest

from slimguard.system import terminal


def test_what_could_speak_to_a_terminal_is_written_out():
    for said, shown in [
        ('\x1b[31mred', '\\x1b[31mred'),
        ('a\u202eb\u200b', 'a\\u202eb\\u200b'),
        ('a\nb\r\tc\0', 'a\\nb\\r\\tc\\x00'),
        ('\udcff', '\\udcff'),
        ('gr\u00f6\u00dfe \u65e5\u672c', 'gr\u00f6\u00dfe \u65e5\u672c'),
        (r'C:\logs', r'C:\logs'),
    ]:
        assert terminal.visible(said) == shown


def test_what_is_long_loses_its_middle():
    for text in ['x' * 10**6, '\x1b' * 10**6, 'model.ckpt-' + '1' * 90]:
        shown = terminal.visible(text, 60)
        assert len(shown) == 60
        assert shown[:5] == terminal.visible(text[:10])[:5] and shown[-1:] in text + 'b'


def test_one_long_word_does_not_make_every_row_long(capsys):
    terminal.print_table([('name', 'why')] + [('x' * 10**6, 'y' * 10**6)] + [('a', 'b')] * 100)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 400
    assert lines[2].split() == ['a', 'b'] and len(lines[2]) < 70


def test_a_stdout_of_few_characters_gets_escapes(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(written, encoding='ascii'))
    with terminal.streams():
        terminal.say('gr\u00f6\u00dfe')
        terminal.say('x' * 20000)
    first, second = written.getvalue().decode('ascii').splitlines()
    assert first == 'gr\\xf6\\xdfe'
    assert 'x...x' in second and len(second) == 10000
    assert sys.stdout.errors == 'strict'  # as before


def test_an_error_of_the_command_passes():
    with pytest.raises(ZeroDivisionError), terminal.streams():
        raise ZeroDivisionError


def test_what_the_user_is_to_look_at_is_a_sentence(capsys):
    with pytest.raises(SystemExit) as left, terminal.streams():
        open('/nowhere/to be found')
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "slimguard: [Errno 2] No such file or directory: '/nowhere/to be found'\n"
    )
