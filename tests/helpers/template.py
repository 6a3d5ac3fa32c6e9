"""Python programs that are forked from a process in which TensorFlow is imported already.

    with Forked(['script.py', '--flag'], environment(), stdout=subprocess.PIPE) as process:
        ...

TensorFlow takes seconds to import, and cannot be forked once it runs. So a server beside the tests
imports it, never uses it, and forks for each program. Run as a script, this file is that server.
It ends with the tests, and the programs with it.
"""

import atexit
import ctypes
import gc
import importlib
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import types
from multiprocessing import connection, process, reduction

_PR_SET_PDEATHSIG = 1
_ENCODING, _UNBUFFERED = 'PYTHONIOENCODING', 'PYTHONUNBUFFERED'
_servers = {}  # by the module that they import


class Forked(subprocess.Popen):
    """``python arguments``, as `subprocess.Popen` would start it.

    Takes a Popen's `stdin`, `stdout`, `stderr`, `env`, `cwd`, `text` and `start_new_session`.
    The program finds the module `finds` imported, with all that this module imports. These modules
    have seen the environment of the server, not that of the program.
    """

    def __init__(
        self, arguments, env, start_new_session=False, finds='slimguard.learning', **kwargs
    ):
        self._new_session, self._finds, self._status = start_new_session, finds, None
        super().__init__(list(map(str, arguments)), env=env, **kwargs)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        """Popen forks here; this asks the server to. `others` begins alike in all Pythons."""
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = others[3:9]
        theirs = [p2cread, c2pwrite, errwrite]
        fds = [number if theirs[number] == -1 else theirs[number] for number in range(3)]
        if self._finds not in _servers:
            _servers[self._finds] = _Server(self._finds, env)
        program = args, env, os.path.abspath(cwd or os.curdir), self._new_session
        self.pid, self._status = _servers[self._finds].fork(program, fds)
        self._child_created = True
        pairs = (p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)
        made = {its for its, mine in pairs if mine != -1} | {getattr(self, '_devnull', -1)}
        for fd in made - {-1}:
            os.close(fd)

    def send_signal(self, sig):
        try:
            super().send_signal(sig)
        except ProcessLookupError:
            pass  # it has ended, and the server has waited for it

    def _try_wait(self, wait_flags):
        patience = 0 if wait_flags & os.WNOHANG else None
        if not select.select([self._status], [], [], patience)[0]:
            return 0, 0
        said = os.read(self._status, 100)
        os.close(self._status)
        return self.pid, int(said or signal.SIGKILL)  # no status: it was killed with the server

    def _internal_poll(self, _deadstate=None, **_):
        if self.returncode is None and self._status is not None:
            number, status = self._try_wait(os.WNOHANG)
            if number:
                self._handle_exitstatus(status)
        return self.returncode


class _Server:
    """The tests' side of a server."""

    def __init__(self, finds, env):
        self._lock = threading.Lock()
        self._pipe, its = connection.Pipe()
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), str(its.fileno()), finds],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            env={name: env[name] for name in env if name not in (_ENCODING, _UNBUFFERED)},
            start_new_session=True,  # Ctrl-C ends the tests, and their end is the server's
        )
        its.close()
        atexit.register(self.close)

    def fork(self, program, fds):
        """Returns the number of the process, and the pipe that its status will come from."""
        reading, writing = os.pipe()
        with self._lock:
            self._pipe.send(program)
            for fd in [*fds, writing]:
                reduction.send_handle(self._pipe, fd, self._process.pid)
        os.close(writing)
        return int(os.read(reading, 10)), reading

    def close(self):
        self._pipe.close()
        self._process.wait()


# In the server.


def _serve(pipe):
    """Forks a program for each request. It returns only in the programs, with their arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps the processes that wait for a program
    while True:
        try:
            arguments, env, folder, new_session = pipe.recv()
        except (EOFError, ConnectionError):
            os._exit(0)
        fds = [reduction.recv_handle(pipe) for _ in range(4)]
        if os.fork() == 0:
            pipe.close()
            _die_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            number = os.fork()
            if number == 0:
                _become(fds, env, folder, new_session)
                return arguments
            for fd in fds[:3]:
                os.close(fd)
            os.write(fds[3], b'%-10d' % number)
            os.write(fds[3], b'%d' % os.waitpid(number, 0)[1])
            os._exit(0)
        for fd in fds:
            os.close(fd)


def _die_with_parent():
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _become(fds, env, folder, new_session):
    _die_with_parent()
    if new_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(fds):
        if number < 3:
            os.dup2(fd, number)
        os.close(fd)
    os.chdir(folder)
    process.ORIGINAL_DIR = folder  # a spawned child looks for the script here
    os.environ.clear()
    os.environ.update(env)
    if env.get(_ENCODING):
        encoding = env[_ENCODING].partition(':')[0]
        sys.stdout = open(1, 'w', encoding=encoding, closefd=False)


def _run(arguments):
    """Does the same as ``python arguments`` once the interpreter has started."""
    main = sys.modules['__main__'] = types.ModuleType('__main__')
    first, *rest = arguments
    if first == '-m':
        sys.argv[:] = arguments[:1] + rest[1:]
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(rest[0])  # as the interpreter itself does
        return
    if first == '-c':
        sys.argv[:], sys.path[0] = [first, *rest[1:]], ''
        code = compile(rest[0], '<string>', 'exec', dont_inherit=True)
    else:
        sys.argv[:], sys.path[0] = arguments, os.path.dirname(os.path.realpath(first))
        main.__file__ = os.path.abspath(first)
        with open(first, 'rb') as file:
            code = compile(file.read(), main.__file__, 'exec', dont_inherit=True)
    try:
        exec(code, vars(main))
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__.tb_next)  # without this frame
        sys.exit(1)


if __name__ == '__main__':
    _path = list(sys.path)
    importlib.import_module(sys.argv[2])
    sys.path[:] = _path  # without the folder that setuptools adds, which old TensorFlow imports
    gc.collect()
    gc.freeze()  # so that programs do not copy what they never change
    _run(_serve(connection.Connection(int(sys.argv[1]))))
