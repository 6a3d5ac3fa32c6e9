"""Programs that are forked from the template run as in an interpreter of their own."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.helpers.children import ROOT, environment, forked_python, python
from tests.helpers.processes import is_alive
from tests.helpers.template import Forked
from tests.helpers.user_scripts import SCRIPTS, write_scripts

# Not 'an interrupt': on the way to Python's own exit its traceback shows where we began.
SAME = sorted(set(SCRIPTS) - {'an interrupt'})
STATE = """
import locale, os, signal, sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering)
    print(stream.fileno(), stream.isatty())
print(sys.argv, sys.path, sys.flags, sys.warnoptions, sys.stdout is sys.__stdout__)
print(sorted(os.environ.items()), os.getcwd(), os.umask(0), locale.getlocale())
print([signal.getsignal(number) for number in sorted(signal.Signals)], signal.set_wakeup_fd(-1))
print(sorted(number for number in map(int, os.listdir('/proc/self/fd')) if number < 3))
"""


@pytest.mark.parametrize('script', SAME)
def test_a_script_runs_as_plain_python_runs_it(tmp_path, script):
    write_scripts(tmp_path, SCRIPTS[script])
    compare(['script.py', '--flag', 'x y'], tmp_path)


@pytest.mark.parametrize('script', ['its world', 'an exit code', 'processes and pickles'])
def test_a_module_runs_as_plain_python_runs_it(tmp_path, script):
    write_scripts(tmp_path, SCRIPTS[script])
    compare(['-m', 'script', '--flag', 'x y'], tmp_path)


@pytest.mark.parametrize(
    'code', [STATE, 'import sys; sys.exit("no")', 'import os; os.kill(os.getpid(), 15)', 'x = = 1']
)
def test_a_command_runs_as_plain_python_runs_it(tmp_path, code):
    compare(['-c', code, '--flag', 'x y'], tmp_path)


ENDS = {
    'what is registered, threads and processes': """
import atexit, multiprocessing.util, sys, threading, time

def wait():
    main.join()
    print('a thread ends')

def work():
    ends.wait()
    with open('children', 'a') as file:
        file.write('a child ends.')

def go_on():
    while True:
        time.sleep(0.001)

main = threading.current_thread()
processes = multiprocessing.get_context('fork')
ends = processes.Event()
atexit.register(ends.set)
atexit.register(print, 'the first that atexit runs last')
atexit.register(print, 'the last', end=' ')
multiprocessing.util.Finalize(None, print, ('what multiprocessing finalizes',), exitpriority=1)
processes.Process(target=work).start()
processes.Process(target=time.sleep, args=(1000,), daemon=True).start()
threading.Thread(target=wait).start()
threading.Thread(target=go_on, daemon=True).start()
print('the script ends', end=' ')
""",
    'objects': """
import sys

class Last:
    def __del__(self, print=print, errors=sys.stderr):
        print('finalized', file=errors, flush=True)

one, circle = Last(), Last()
circle.itself = circle
""",
}


@pytest.mark.parametrize('end', ['', 'sys.exit(300)', 'sys.exit("no")', 'sys.exit(-1)'])
@pytest.mark.parametrize('start', ['-c', 'script.py', '-m'])
@pytest.mark.parametrize('whole', ['', '1'])
@pytest.mark.parametrize('script', ENDS)
def test_it_ends_as_plain_python_does(tmp_path, monkeypatch, script, whole, start, end):
    monkeypatch.setenv('SLIMGUARD_WHOLE_EXIT', whole)
    code = ENDS[script] + end
    (tmp_path / 'script.py').write_text(code)
    compare({'-c': ['-c', code], '-m': ['-m', 'script']}.get(start, [start]), tmp_path)
    if 'Process(' in code:
        assert (tmp_path / 'children').read_text() == 2 * 'a child ends.'


@pytest.mark.parametrize('end', ['', 'sys.exit(3)'])
def test_it_tells_as_plain_python_does_that_its_last_words_are_lost(end, monkeypatch):
    monkeypatch.delenv('PYTHONUNBUFFERED', raising=False)
    code = 'import sys; print(1); ' + end
    with open('/dev/full', 'w') as full:
        plain, forked = (run('-c', code, stdout=full) for run in (python, forked_python))
    assert (forked.returncode, forked.stderr) == (plain.returncode, plain.stderr)
    assert plain.returncode != 0


def compare(arguments, folder):
    plain = python(*arguments, cwd=str(folder), input='some input')
    forked = forked_python(*arguments, cwd=str(folder), input='some input')
    assert forked.stdout == plain.stdout
    assert forked.returncode == plain.returncode
    assert forked.stderr == plain.stderr


def test_an_interrupt_ends_it_as_it_ends_plain_python(tmp_path):
    write_scripts(tmp_path, SCRIPTS['an interrupt'])
    plain, forked = (run(tmp_path / 'script.py') for run in (python, forked_python))
    assert forked.returncode == plain.returncode
    assert forked.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1] == 'KeyboardInterrupt'


@pytest.mark.parametrize('encoding', ['ascii', 'ascii:replace', ':ignore'])
def test_the_streams_have_the_encoding_that_the_environment_says(tmp_path, monkeypatch, encoding):
    monkeypatch.setenv('PYTHONIOENCODING', encoding)
    compare(['-c', STATE], tmp_path)


@pytest.mark.parametrize('unbuffered', ['', '1'])
def test_what_an_unbuffered_program_writes_is_there_at_once(tmp_path, monkeypatch, unbuffered):
    monkeypatch.setenv('PYTHONUNBUFFERED', unbuffered)
    compare(['-c', 'import os; print(1); os._exit(0)'], tmp_path)
    assert bool(forked_python('-c', 'import os; print(1); os._exit(0)').stdout) == bool(unbuffered)


@pytest.mark.parametrize('handler', [signal.SIG_IGN, signal.default_int_handler])
def test_what_the_tests_ignore_is_ignored(tmp_path, handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        compare(['-c', STATE], tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)


def test_tensorflow_is_there_and_nothing_was_done_with_it():
    code = """
        import sys
        assert {'tensorflow', 'tf_slim'} <= set(sys.modules)
        import tensorflow as tf
        print(tf.executing_eagerly(), len(tf.compat.v1.get_default_graph().get_operations()))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            print(session.run(tf.constant(3) + 4))
        """
    eager = 'False' if sys.version_info < (3, 8) else 'True'
    assert forked_python('-c', textwrap.dedent(code)).stdout == eager + ' 0\n7\n'


def test_two_programs_draw_different_numbers_and_have_numbers_of_their_own():
    code = 'import os, random, numpy; print(os.getpid(), random.random(), numpy.random.rand())'
    first, second = (forked_python('-c', code).stdout.split() for _ in range(2))
    assert not set(first) & set(second)


def test_a_session_of_its_own_is_signalled_as_a_group():
    code = 'import os, time; print(os.getpgid(0) == os.getpid(), flush=True); time.sleep(1000)'
    with Forked(
        ['-c', code], environment(), start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == 'True\n'
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_what_imports_may_have_read_cannot_differ():
    with pytest.raises(ValueError, match='other values of TF_CPP_MIN_LOG_LEVEL; use an interp'):
        Forked(['-c', ''], dict(environment(), TF_CPP_MIN_LOG_LEVEL='0'))


ORPHAN = """
import time
from tests.helpers.children import environment
from tests.helpers.template import Forked

program = ['-c', 'import time; time.sleep(1000)']
print(Forked(program, environment(), finds='time').pid, flush=True)  # it needs no TensorFlow
time.sleep(1000)
"""


def test_no_program_outlives_the_tests():
    with subprocess.Popen(
        [sys.executable, '-c', ORPHAN],
        env=environment(),
        cwd=str(ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as tests:
        number = int(tests.stdout.readline())
        assert is_alive(number)
        tests.kill()
    deadline = time.time() + 60
    while is_alive(number) and time.time() < deadline:
        time.sleep(0.02)
    assert not is_alive(number)
