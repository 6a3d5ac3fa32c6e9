"""Python processes that need not import TensorFlow, because they are forked from one that has.

    with Forked(['script.py', '--flag'], stdout=subprocess.PIPE) as process:
        ...

TensorFlow takes seconds to start, and cannot be forked once it runs. So one process beside the
tests, the template, imports TensorFlow, never uses it, and forks for each program that is to run;
another one, itself forked from the first, imports slimguard as well, and notes where `instrument`
need not look (`module_walk`). A program finds what it would find in an interpreter of its own:
`sys.argv`, `sys.path`, `__main__`, its streams, environment, working directory, umask and signals;
it ends as there, with its status. What differs is what is imported already, and that modules are
not taken apart at the end (`quick_exit`).

The template ends with the test process, however that ends, and the programs with the template.
"""

if __name__ == '__main__':
    import quick_exit  # the file beside this one; its handler of `atexit` is to be the first

import atexit
import builtins
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import types
from multiprocessing import connection, process, reduction
from typing import Dict, List, NamedTuple

_PR_SET_PDEATHSIG = 1
_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_ENCODING = 'PYTHONIOENCODING'  # of a program's streams, which are opened once it is forked
_UNBUFFERED = 'PYTHONUNBUFFERED'  # the same
# What a program may have otherwise than the template, which has not read it: programs themselves
# read the first two; TensorFlow reads the next two when it first runs a graph; scikit-learn sets
# the two after them in the test process, once it is imported there; `quick_exit` reads the next.
_READ_LATE = (
    'PYTEST_CURRENT_TEST',
    'TF_CONFIG',
    'TF_XLA_FLAGS',
    'XLA_FLAGS',
    'KMP_DUPLICATE_LIB_OK',
    'KMP_INIT_AT_FORK',
    'SLIMGUARD_WHOLE_EXIT',
    _ENCODING,
    _UNBUFFERED,
)


# By the module that a template imports, that of the template it is forked from.
_FORKED_FROM = {'slimguard.learning': 'tensorflow'}


class _Program(NamedTuple):
    """What the template is asked to fork.

    Attributes:
      arguments: those after ``python``.
      targets: the numbers that its file descriptors are to have, in the order they are sent in.
      ignored: the signals that the test process ignores, as its children do.
    """

    arguments: List[str]
    environment: Dict[str, str]
    folder: str
    umask: int
    ignored: List[int]
    new_session: bool
    targets: List[int]


class Forked(subprocess.Popen):
    """``python arguments``, as `subprocess.Popen` would start it.

    Takes a Popen's `stdin`, `stdout`, `stderr`, `env`, `cwd`, `text`, `pass_fds` and
    `start_new_session`. `env` may differ from that of the template only in what no import reads.
    `finds` is the module that it finds imported, with all that this one imports.
    """

    def __init__(
        self, arguments, env, start_new_session=False, finds='slimguard.learning', **kwargs
    ):
        self._new_session = start_new_session
        self._finds = finds
        self._status = None
        subprocess.Popen.__init__(self, list(map(str, arguments)), env=env, **kwargs)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        """Where Popen forks and executes. The first of the others are the same in all Pythons."""
        streams = others[3:9]  # p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        theirs = [streams[0], streams[3], streams[5]]
        fds = [number if theirs[number] == -1 else theirs[number] for number in range(3)]
        mask = os.umask(0)
        os.umask(mask)
        program = _Program(
            args,
            env,
            os.path.abspath(cwd or os.curdir),
            mask,
            [number for number in _SIGNALS if signal.getsignal(number) == signal.SIG_IGN],
            self._new_session,
            [0, 1, 2, *pass_fds],
        )
        try:
            self.pid, self._status = _the_template(env, self._finds).fork(
                program, fds + list(pass_fds)
            )
            self._child_created = True
        finally:
            devnull = getattr(self, '_devnull', None)
            for fd in {fd for fd in theirs if fd not in (-1, devnull)}:
                if fd in self._made(streams):
                    os.close(fd)
            if devnull is not None:
                os.close(devnull)

    @staticmethod
    def _made(streams):
        """The program's ends of the pipes that Popen made, and no file of the caller's."""
        read, write, out_read, out_write, error_read, error_write = streams
        pairs = (read, write), (out_write, out_read), (error_write, error_read)
        return [its for its, mine in pairs if mine != -1]

    def _try_wait(self, wait_flags):
        patience = 0 if wait_flags & os.WNOHANG else None
        if not select.select([self._status], [], [], patience)[0]:
            return 0, 0
        said = os.read(self._status, 100)
        os.close(self._status)
        assert said, 'the template has ended before its child %d' % self.pid
        return self.pid, int(said)

    def _internal_poll(self, _deadstate=None, **_):
        if self.returncode is None and self._status is not None:
            number, status = self._try_wait(os.WNOHANG)
            if number:
                self._handle_exitstatus(status)
        return self.returncode


class _Template:
    """The test process's side of a template."""

    def __init__(self, environment, finds):
        self._environment = _read_early(environment)
        self._lock = threading.Lock()
        self._pipe, its = connection.Pipe()
        arguments = [os.path.abspath(__file__), str(its.fileno()), finds]
        settings = dict(
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in environment.items() if name != _ENCODING},
        )
        if finds in _FORKED_FROM:
            self._process = Forked(arguments, finds=_FORKED_FROM[finds], **settings)
        else:
            self._process = subprocess.Popen([sys.executable, *arguments], **settings)
        its.close()
        atexit.register(self.close)

    def fork(self, program, fds):
        """Returns the number of the process, and the pipe that its status will come from."""
        differ = _read_early(program.environment).items() ^ self._environment.items()
        if differ:
            raise ValueError(
                'the template was started with other values of %s; use an interpreter of its own'
                % ', '.join(sorted({name for name, _ in differ}))
            )
        reading, writing = os.pipe()
        try:
            with self._lock:
                self._pipe.send(tuple(program))  # the template may have no way to our class
                for fd in fds + [writing]:
                    reduction.send_handle(self._pipe, fd, self._process.pid)
                return self._pipe.recv(), reading
        finally:
            os.close(writing)

    def close(self):
        self._pipe.close()
        self._process.wait()


def _read_early(environment):
    return {name: value for name, value in environment.items() if name not in _READ_LATE}


_templates = {}


def _the_template(environment, finds):
    if finds not in _templates:
        _templates[finds] = _Template(environment, finds)
    return _templates[finds]


# In the template.


def _serve(pipe, finds):
    """Forks as it is asked to. Returns the program in each child, and None once nobody asks."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the test process hears it, and ends
    path = list(sys.path)
    gc.disable()  # what is imported stays
    importlib.import_module(finds)  # slimguard.learning with TensorFlow and tf-slim
    if 'slimguard' in sys.modules:
        importlib.import_module('module_walk').pass_over_libraries()  # the file beside this one
    sys.path[:] = path  # setuptools, that old TensorFlow imports, adds a folder of its own
    gc.enable()
    gc.collect()
    gc.freeze()  # so that children do not copy what they never change
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    statuses = {}
    while True:
        ready, _, _ = select.select([pipe, woken], [], [])
        if woken in ready:
            os.read(woken, 1000)
            _tell_who_has_ended(statuses)
        if pipe in ready:
            try:
                program = _Program(*pipe.recv())
            except (EOFError, ConnectionError):
                return None
            *fds, status = (reduction.recv_handle(pipe) for _ in range(len(program.targets) + 1))
            template = os.getpid()
            number = os.fork()
            if number == 0:
                signal.set_wakeup_fd(-1)
                pipe.close()
                for fd in [woken, wakes, status, *statuses.values()]:
                    os.close(fd)
                _take_on(program, fds, template)
                return program
            statuses[number] = status
            for fd in fds:
                os.close(fd)
            pipe.send(number)


def _tell_who_has_ended(statuses):
    for number in list(statuses):
        ended, status = os.waitpid(number, os.WNOHANG)
        if ended:
            try:
                os.write(statuses[number], b'%d' % status)
            except BrokenPipeError:
                pass  # nobody asks any more
            os.close(statuses.pop(number))


def _take_on(program, fds, template):
    """Makes the child what Popen's child is when its interpreter has started."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != template:
        os._exit(1)  # it has ended meanwhile
    if program.new_session:
        os.setsid()
    for number in (*_SIGNALS, signal.SIGCHLD):
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in program.ignored else default)
    # First out of the way: one may have a number that another is to get.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(program.targets) + 1) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, target in zip(high, program.targets):
        os.dup2(fd, target)
        os.close(fd)
    os.umask(program.umask)
    os.chdir(program.folder)
    process.ORIGINAL_DIR = os.getcwd()  # from where a spawned child finds the script
    os.environ.clear()
    os.environ.update(program.environment)
    _open_streams()
    _draw_other_random_numbers()


def _open_streams():
    """The streams on 0, 1 and 2 as an interpreter opens them."""
    encoding, _, errors = os.environ.get(_ENCODING, '').partition(':')
    errors = errors or ('strict' if encoding else '')
    for number, name in enumerate(('stdin', 'stdout', 'stderr')):
        old = getattr(sys, name)
        unbuffered = number > 0 and bool(os.environ.get(_UNBUFFERED))
        mode, buffering = 'wb' if number else 'rb', 0 if unbuffered else -1
        buffer = open(number, mode, buffering, closefd=False)
        getattr(buffer, 'raw', buffer).name = '<%s>' % name
        by_line = os.isatty(number) or number == 2 and sys.version_info >= (3, 9)
        new = type(old)(
            buffer,
            encoding=encoding or old.encoding,
            errors=old.errors if number == 2 else errors or old.errors,
            newline='\n' if number else None,
            line_buffering=by_line and not unbuffered,
            write_through=unbuffered,
        )
        new.mode = 'w' if number else 'r'
        setattr(sys, name, new)
        setattr(sys, '__%s__' % name, new)


def _draw_other_random_numbers():
    """Python's own generator sees to it when it is forked."""
    numpy = sys.modules.get('numpy')
    if numpy is not None:
        numpy.random.seed()


def _run(arguments):
    """Does what ``python arguments`` does once the interpreter has started."""
    main = sys.modules['__main__'] = types.ModuleType('__main__')
    main.__builtins__ = builtins
    main.__annotations__ = {}
    if hasattr(sys, 'orig_argv'):
        sys.orig_argv[:] = [sys.executable, *arguments]
    importlib.invalidate_caches()
    if arguments[0] == '-m':
        sys.argv[:] = ['-m', *arguments[2:]]
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(arguments[1])  # as the interpreter itself does
        return
    if arguments[0] == '-c':
        sys.argv[:] = ['-c', *arguments[2:]]
        sys.path[0] = ''
        main.__loader__ = importlib.machinery.BuiltinImporter
        source, path = arguments[1], '<string>'
    else:
        assert not arguments[0].startswith('-'), 'options are for an interpreter: %r' % arguments
        sys.argv[:] = arguments
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        path = os.path.abspath(arguments[0]) if sys.version_info >= (3, 9) else arguments[0]
        main.__file__, main.__cached__ = path, None
        main.__loader__ = importlib.machinery.SourceFileLoader('__main__', path)
        source = main.__loader__.get_data(path)
    code = None
    try:
        code = compile(source, path, 'exec', dont_inherit=True)
        exec(code, vars(main))
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not code:
            trace = trace.tb_next  # plain Python would not be there
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _status_of(code):
    """What the interpreter tells of ``sys.exit(code)``."""
    return code & 0xFF if isinstance(code, int) else int(code is not None)


if __name__ == '__main__':
    _asked_for = _serve(connection.Connection(int(sys.argv[1])), sys.argv[2])
    try:
        if _asked_for is not None:
            _run(_asked_for.arguments)
    except SystemExit as end:
        quick_exit.note(_status_of(end.code))
        raise
    quick_exit.note(0)
