"""Texts of others are made visible and cut, for pages, terminals and records alike."""

from slimguard.report import page
from slimguard.system import terminal, texts


def test_it_looks_the_same_wherever_it_is_shown():
    for said, shown in [
        ('\x1b[31mred\x7f', '\\x1b[31mred\\x7f'),
        ('a\u202eb\u200b\ufeff', 'a\\u202eb\\u200b\\ufeff'),
        ('a\u2028b\u2029', 'a\\u2028b\\u2029'),  # would end the line
        ('\udcff', '\\udcff'),
        ('12\u00a0000 gr\u00f6\u00dfe \u65e5\u672c', '12\u00a0000 gr\u00f6\u00dfe \u65e5\u672c'),
        (None, 'None'),
    ]:
        assert texts.visible(said) == texts.in_one_line(said) == shown
        on_page = page.environment().from_string('{{ said }}').render(said=said)
        assert on_page == terminal.visible(said) == shown


def test_lines_stay_lines_but_for_a_sentence():
    assert texts.visible('a\n\tb\r') == 'a\n\tb\\r'
    assert texts.in_one_line('a\n\tb\r') == 'a\\n\\tb\\r'


def test_what_is_too_long_loses_its_end():
    for dots in ['...', '\N{HORIZONTAL ELLIPSIS}']:
        assert texts.cut('x' * 10, 10, dots) == 'x' * 10
        assert texts.cut('x' * 11, 10, dots) == 'x' * (10 - len(dots)) + dots
