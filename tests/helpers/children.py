"""Programs that tests start: Python, with the same slimguard as the tests themselves."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import slimguard
from tests.helpers.template import Forked

ROOT = pathlib.Path(__file__).resolve().parents[2]


def environment():
    """The environment of a Python process: quiet, and with our slimguard, installed or not."""
    here = os.path.dirname(os.path.dirname(slimguard.__file__))
    return dict(os.environ, PYTHONPATH=here, TF_CPP_MIN_LOG_LEVEL='3')


def python(*arguments, **kwargs):
    """Runs Python to its end. Returns the `CompletedProcess`, with its output as text.

    The `variables` are added to its environment.
    """
    variables = kwargs.pop('variables', {})
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        stdout=kwargs.pop('stdout', subprocess.PIPE),
        stderr=kwargs.pop('stderr', subprocess.PIPE),
        text=True,
        env=dict(environment(), **variables),
        timeout=900,
        **kwargs,
    )


def forked_python(
    *arguments,
    input=None,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    cwd=None,
    finds='slimguard.learning',
    variables=None,
):
    """As `python`, for programs that import TensorFlow: they find it imported already.

    That saves seconds. With ``finds='tensorflow'`` neither slimguard nor tf-slim is imported yet.
    Use `python` if the test depends on the start of the interpreter, or on the order of imports.
    """
    with Forked(
        arguments,
        dict(environment(), **(variables or {})),
        stdin=None if input is None else subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        text=text,
        cwd=cwd,
        finds=finds,
    ) as process:
        try:
            output, errors = process.communicate(input, timeout=900)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


class Started:
    """A running Python process, in a process group of its own, which ends with the test.

    It is forked as in `forked_python`. A test waits for lines of its output or log, never for time.
    """

    def __init__(self, *arguments):
        self.process = Forked(
            arguments,
            environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.was_too_slow = False
        self._killer = threading.Timer(900, self._give_up)  # so that no test waits for ever
        self._killer.daemon = True
        self._killer.start()

    def wait_for(self, text):
        """Reads until there is a line with `text` in it, which it returns."""
        lines = []
        while not lines or text not in lines[-1]:
            lines.append(self.process.stdout.readline())
            assert lines[-1], '%r was never written, but:\n%s' % (text, ''.join(lines))
        return lines[-1]

    def send(self, number):
        self.process.send_signal(number)

    def send_to_group(self, number):
        """Sends a signal to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def go_on(self):
        """Writes the line that the process waits for."""
        self.process.stdin.write('\n')
        self.process.stdin.flush()

    def wait(self):
        return self.process.wait(timeout=900)

    def wait_for_children(self):
        """Waits until no process is left that has this one's output open."""
        self.process.stdout.read()
        assert not self.was_too_slow, 'there are children after 900 s'

    def _give_up(self):
        self.was_too_slow = True
        self._kill()

    def _kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # its children may outlive it
        except ProcessLookupError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._kill()
        self._killer.cancel()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
