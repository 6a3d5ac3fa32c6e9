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


def test_runs_that_only_wrote_are_no_steps():
    seen = Seen()
    seen.note_steps('Adam', 3)
    seen.writing_runs = 2
    assert str(seen) == 'guarded Adam: 3 steps and 2 runs that only wrote, no incident'


def test_a_save_that_was_refused_is_counted_and_its_record_named():
    seen = Seen()
    seen.note_steps('Adam', 3)
    seen.note_refused_save('/there')
    said = 'guarded Adam: 3 steps, no incident, 1 save refused as not finite; record and bundles: '
    assert str(seen) == said + os.path.join('/there', 'slimguard')


def test_other_processes_that_may_have_trained_are_told(monkeypatch):
    times = os.times()
    monkeypatch.setattr(os, 'times', lambda: os.times_result((*times[:2], 3.0, *times[3:])))
    assert 'but other processes: each is guarded only if run starts it too' in str(Seen())


def test_a_script_that_guards_itself_is_not_called_unguarded():
    seen = Seen()
    seen.runs, seen.own_steps = 5, 2
    assert str(seen).startswith('the script guards itself, by a NanLossHook')
    assert ': 2 steps. What it says there holds' in str(seen)
