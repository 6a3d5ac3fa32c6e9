"""``python -m slimguard``: its options, and scripts that run as plain Python would run them."""

import os
import signal
import zipapp

import pytest

from slimguard.__main__ import main
from tests.helpers.children import forked_python, python
from tests.helpers.user_scripts import SCRIPTS, write_scripts

# Runs a script or a module as `slimguard run` does, without the guard: no TensorFlow.
RUN_ONLY = """\
import sys
from slimguard.unedited import run
if sys.argv[1] == '-m':
    run.run_module(sys.argv[2], sys.argv[3:])
else:
    run.run_script(sys.argv[1], sys.argv[2:])
"""
WITHOUT_TENSORFLOW = """\
import sys
from slimguard.__main__ import main
try:
    main()
finally:
    assert 'tensorflow' not in sys.modules
"""


@pytest.mark.every_cell
@pytest.mark.parametrize(
    'arguments, message',
    [
        ('run --on_nan=foo x.py', "argument --on_nan: unknown policy 'foo'; expected raise, stop"),
        ('run --on_nan=skip:0 x.py', "'skip:0': expected a number of at least 1"),
        ('run --on_nan=skip:x x.py', "'skip:x': expected a number after the colon, as in skip:5"),
        ('run --on_nan=rollback:x0.5 x.py', "'rollback:x0.5': expected a number after the colon"),
        ('run --on_nan=skip:3x0.5 x.py', "'skip:3x0.5': only rollback takes a factor"),
        ('run --on_nan=raise:3 x.py', "'raise:3': raise takes no number"),
        ('run --max_loss=-1 x.py', "expected a positive finite number, not '-1'"),
        ('run --preemption_seconds 0 x.py', "expected a positive finite number, not '0'"),
        ('run --capture=maybe x.py', "'maybe'"),
        ('run --max-bundles=0 x.py', "expected a whole number, 1 or more, not '0'"),
        ('run --colour x.py', 'run: error: unrecognized arguments: --colour'),
        ('run --on_nann=skip x.py', 'arguments: --on_nann=skip; did you mean --on_nan?'),
        ('report --outptu=x y', 'arguments: --outptu=x; did you mean --output?'),
        ('incidents --everything x', 'usage: slimguard incidents [-h] [--all]'),
        ('run --max_loss x.py', "expected a positive finite number, not 'x.py'"),
        ('run --tf1', 'name a script to run, or a module after -m'),
        ('run %s' % os.path.dirname(__file__), 'has no __main__.py to run'),
        ('run nowhere.py', "there is no file 'nowhere.py' to run"),
        ('checkpoints', 'LOGDIR'),
        ('incident logs', "there is no command 'incident'; did you mean incidents?"),
        ('raport logs', "there is no command 'raport'; did you mean report?"),
        ('train logs', "there is no command 'train'; the commands: run, doctor, checkpoints"),
        (__file__, 'to run a script: slimguard run ' + __file__),
        ('incidents nowhere', "incidents: error: there is no directory 'nowhere'"),
        ('replay', 'BUNDLE'),
        ('replay --without=-1 x', "expected a whole number, 0 or more, not '-1'"),
    ],
)
def test_a_usage_error_says_so(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert 'usage: slimguard' in said and message in said


def test_help_and_usage_errors_come_without_importing_tensorflow():
    assert python('-c', WITHOUT_TENSORFLOW, 'run', '--on_nan=foo', 'x.py').returncode == 2
    assert 'doctor' in python('-c', WITHOUT_TENSORFLOW, '--help').stdout
    run = python('-c', WITHOUT_TENSORFLOW, 'run', '--on_nan=skip', '--help')
    assert run.returncode == 0
    assert '-m module' in run.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    'ours, theirs, said',
    [
        (
            [],
            ['--on_nan=skip', '--lr=1', '--max_loss=5'],
            ['--on_nan=skip', '--max_loss=5'],
        ),
        ([], ['--max_loss=5'], []),
        (['--on_nan=skip'], ['--on_nan=skip', '--logdir=a', '--history=3'], []),
    ],
)
def test_an_option_after_the_script_is_the_scripts_and_that_is_said(ours, theirs, said, tmp_path):
    (tmp_path / 'script.py').write_text('import sys; print(sys.argv[1:])')
    arguments = ['run', *ours, 'script.py', *theirs]
    run = forked_python('-m', 'slimguard', *arguments, cwd=str(tmp_path))
    assert run.returncode == 0 and run.stdout.strip() == str(theirs), run.stderr
    lines = [line for line in run.stderr.splitlines() if 'came after the script' in line]
    assert [line.split()[1] for line in lines] == said
    told = 'and was given to it; options for slimguard come before the script'
    assert all(line.endswith(told) for line in lines)


@pytest.mark.parametrize('script', sorted(SCRIPTS))
def test_a_script_runs_as_plain_python_runs_it(tmp_path, script):
    write_scripts(tmp_path, SCRIPTS[script])
    compare_with_plain_python(tmp_path, ['script.py'])


@pytest.mark.parametrize(
    'module, script', [('package', 'its world'), ('package.script', 'processes and pickles')]
)
def test_a_module_runs_as_plain_python_runs_it(tmp_path, module, script):
    package = tmp_path / 'package'
    package.mkdir()
    (package / '__init__.py').write_text('')
    write_scripts(package, SCRIPTS[script].replace('import sib', 'from . import sib'))
    (package / '__main__.py').write_text((package / 'script.py').read_text())
    compare_with_plain_python(tmp_path, ['-m', module])


@pytest.mark.parametrize('is_zip, script', [(False, 'its world'), (True, 'an exception')])
def test_a_folder_or_a_zip_file_runs_as_plain_python_runs_it(tmp_path, script, is_zip):
    """The zip file begins with a line, as `zipapp` writes it."""
    program = tmp_path / 'program'
    program.mkdir()
    write_scripts(program, SCRIPTS[script])
    (program / 'script.py').rename(program / '__main__.py')
    if is_zip:
        zipapp.create_archive(str(program), str(tmp_path / 'program.pyz'), '/usr/bin/env python')
    compare_with_plain_python(tmp_path, ['program.pyz' if is_zip else 'program'])


def compare_with_plain_python(folder, script):
    arguments = script + ['--on_nan=foo', '-m', '--tf1', 'x y']
    expected = python(*arguments, cwd=str(folder), input='some input')
    got = python('-c', RUN_ONLY, *arguments, cwd=str(folder), input='some input')
    assert got.stdout == expected.stdout
    assert got.stderr == without_runpy(expected.stderr)
    assert got.returncode == expected.returncode


def without_runpy(text):
    """Python's own traceback for ``-m``, without the two frames of runpy that begin it."""
    lines = text.splitlines(True)
    frames = [i for i, line in enumerate(lines) if 'runpy' in line]
    if frames:
        following = next(
            i for i in range(frames[-1] + 1, len(lines)) if lines[i].startswith('  File')
        )
        del lines[frames[0] : following]
    return ''.join(lines)


def test_a_module_that_is_not_there_is_said_as_python_says_it(tmp_path):
    run = python('-c', RUN_ONLY, '-m', 'nowhere.to_be_found', cwd=str(tmp_path))
    assert run.returncode == 1
    assert "'nowhere.to_be_found'" in run.stderr and "No module named 'nowhere'" in run.stderr
    assert 'Traceback' not in run.stderr


@pytest.mark.full
def test_a_guarded_script_fails_as_it_would_without_us(tmp_path):
    write_scripts(tmp_path, SCRIPTS['an exception'])
    arguments = ['script.py', '--on_nan=foo', '--tf1']
    plain = python(*arguments, cwd=str(tmp_path))
    guarded = forked_python(
        '-m', 'slimguard', 'run', '--on_nan', 'skip:3,stop', '--tf1', *arguments, cwd=str(tmp_path)
    )
    assert guarded.returncode == plain.returncode == 1
    before, _, last = guarded.stderr.rpartition('slimguard: nothing here was guarded: ')
    assert before.endswith(plain.stderr)
    assert 'the script ended before it ran a session' in last
    assert guarded.stderr.count('Traceback') == 1


INTERRUPTED_TWICE = """\
import atexit, os, signal

def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)

atexit.register(press_ctrl_c)
press_ctrl_c()
"""


@pytest.mark.full
def test_a_second_ctrl_c_ends_a_script_that_is_ending_with_one_line(tmp_path):
    (tmp_path / 'script.py').write_text(INTERRUPTED_TWICE)
    run = forked_python('-m', 'slimguard', 'run', 'script.py', cwd=str(tmp_path))
    assert run.returncode == -signal.SIGINT
    assert run.stderr.endswith('slimguard: Ctrl-C again; ending at once\n')
    assert run.stderr.count('Traceback') <= 1 and 'run.py' not in run.stderr


def test_a_ctrl_c_before_the_script_has_begun_is_one_line():
    program = (
        'from slimguard.unedited.run import note_interrupt\n'
        'try:\n    raise KeyboardInterrupt\n'
        'except KeyboardInterrupt as error:\n    note_interrupt(error)\n'
    )
    run = python('-c', program)
    assert (run.returncode, run.stderr) == (-signal.SIGINT, 'slimguard: Ctrl-C\n')


# Two scripts in one process, as a user's own launcher may run them.
IN_PROCESS = """\
import sys

import tensorflow as tf

import slimguard
from slimguard.__main__ import main
from slimguard.unedited import instrumentation

owner = tf.compat.v1.Session.__mro__[1]
before = owner.run
script = sys.argv[1]
main(['run', '--on_nan=skip', script])
main(['run', '--on_nan=stop', script])
assert owner.run is before
with instrumentation.instrument([slimguard.Skip()]):
    main(['run', '--on_nan=skip', script])
    assert instrumentation.is_active() and owner.run is not before
"""


@pytest.mark.full
def test_a_caller_who_goes_on_gets_back_what_was_there(tmp_path):
    (tmp_path / 'script.py').write_text(
        'import tensorflow as tf\nprint(tf.compat.v1.Session.__mro__[1].run.__module__)\n'
    )
    run = forked_python('-c', IN_PROCESS, tmp_path / 'script.py')
    assert run.returncode == 0, run.stderr


def test_a_logdir_on_a_file_system_that_tensorflow_lacks_is_refused_ahead_of_the_script(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text('print("it ran")\n')
    asked = ['-m', 'slimguard', 'run', '--logdir=nowhere://logs', str(script)]
    ended = forked_python(*asked)
    assert ended.returncode == 2
    assert 'it ran' not in ended.stdout
    assert "nowhere://logs cannot be read: File system scheme 'nowhere'" in ended.stderr
