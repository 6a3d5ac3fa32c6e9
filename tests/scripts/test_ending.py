"""What `run` says at the end of a script goes to stderr, or nowhere."""

import io
import os
import sys

import pytest

from slimguard.scripts.ending import Ending, Seen


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize('stderr', [None, closed()], ids=['none', 'closed by the script'])
def test_a_stderr_that_is_closed_gets_nothing_and_stdout_neither(stderr, capsys, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', stderr)
    Ending(Seen(), os.getpid()).say()
    assert capsys.readouterr().out == ''


def test_it_is_said_on_stderr_and_by_no_fork(capsys):
    Ending(Seen(), os.getpid()).say()
    Ending(Seen(), os.getpid() + 1).say()
    out, err = capsys.readouterr()
    assert out == ''
    assert err.count('slimguard: nothing here was guarded') == 1
