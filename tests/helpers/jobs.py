"""Jobs of several real processes on loopback: parameter servers and workers.

    def train(role, logdir):  # at the top of a module, so that it can be found by name
        with role.device():
            train_op = ...
        master = role.server().target
        return slimguard.train(train_op, logdir, master=master, is_chief=role.is_chief)

    with Job(train, str(tmp_path), ps=1, workers=2) as job:
        assert job.hear('worker', 1) == 5  # sent by role.say(5)
        job.kill('worker', 1)
        job.start('worker', 1)
        chief, other = job.wait_for_workers()
    assert chief.error is None and chief.value < 0.1

Each role is a program that is forked from the template, see `template.py`, and ends with the tests.
Its stdout is the pipe through which it talks to the test; what it prints goes to its log.
"""

import faulthandler
import importlib
import os
import pathlib
import pickle
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing import connection
from typing import Any, NamedTuple, Optional

import tensorflow as tf

import slimguard
from tests.helpers.children import ROOT, environment
from tests.helpers.template import Forked

tf1 = tf.compat.v1

# Below the ports that systems give to connections (from 32768 on). So no connection takes the port
# of a killed role before the role is started again.
_PORTS = range(10000, 32000)
# How long a role may take, in seconds: enough on a busy machine, and no test waits for ever.
_PATIENCE = 300
_ROLE = """import sys
sys.path.append(%r)
from tests.helpers import jobs
jobs.live(*sys.argv[1:])
"""


class Ended(NamedTuple):
    """How a role ended.

    Attributes:
      value: the value that its function returned.
      error: the name of the class of the error it raised; 'Killed' if it ended without a word.
      message: the message of the error.
      incident: the incident of the error as a dict, if it has one.
      log: the stdout and stderr of the process.
    """

    value: Any = None
    error: Optional[str] = None
    message: str = ''
    incident: Optional[dict] = None
    log: str = ''


class Role:
    """The first argument of a role's function.

    Attributes:
      job: 'ps' or 'worker'.
      task: its number in the job; worker 0 is the chief.
      cluster: the addresses, a list for each job.
    """

    def __init__(self, job, task, cluster, folder, pipe):
        self.job = job
        self.task = task
        self.cluster = cluster
        self._folder = folder
        self._pipe = pipe
        self._server = None

    @property
    def is_chief(self):
        return self.job == 'worker' and self.task == 0

    def server(self):
        """The role's `tf.compat.v1.train.Server`, started when it is first asked for."""
        if self._server is None:
            cluster = tf1.train.ClusterSpec(self.cluster)
            self._server = tf1.train.Server(cluster, job_name=self.job, task_index=self.task)
        return self._server

    def device(self, **kwargs):
        """Puts variables on the parameter servers, and the rest on this worker."""
        return tf1.device(
            tf1.train.replica_device_setter(
                cluster=tf1.train.ClusterSpec(self.cluster),
                worker_device='/job:%s/task:%d' % (self.job, self.task),
                **kwargs,
            )
        )

    def config(self):
        """The config of its sessions: they reach the parameter servers and this role only.

        With the default config, a session waits for all workers to start, and on TensorFlow 1.15
        its `close` never returns once one of them is gone.
        """
        mine = '/job:%s/task:%d' % (self.job, self.task)
        return tf1.ConfigProto(device_filters=['/job:ps', mine])

    def synchronous(self, optimizer):
        """The `SyncReplicasOptimizer` that waits for all workers."""
        workers = len(self.cluster['worker'])
        return tf1.train.SyncReplicasOptimizer(
            optimizer, replicas_to_aggregate=workers, total_num_replicas=workers
        )

    def train_op(self, loss, optimizer, sync):
        """A guarded train op, and the `SyncReplicasOptimizer` it is made with, or None.

        Args:
          sync: whether there is one, around `optimizer`.
        """
        waiting = self.synchronous(optimizer) if sync else None
        train_op = slimguard.create_train_op(loss, waiting or optimizer, check_numerics=False)
        return train_op, waiting

    def train_monitored(self, train_op, logdir, hooks, sync=None, **kwargs):
        """Trains in a `MonitoredTrainingSession` until that is to stop.

        Args:
          sync: the `SyncReplicasOptimizer`, or None.
          **kwargs: for the session.
        """
        if sync is not None:
            hooks = hooks + [sync.make_session_run_hook(self.is_chief)]
        with tf1.train.MonitoredTrainingSession(
            self.server().target,
            self.is_chief,
            checkpoint_dir=logdir,
            hooks=hooks,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
            config=self.config(),
            **kwargs,
        ) as session:
            while not session.should_stop():
                session.run(train_op)

    def say(self, value):
        """Sends a value to the test, which reads it with `Job.hear`."""
        self._pipe.send(('said', value))

    def post(self, name):
        """Posts `name`: the roles of this job that wait for it, now or later, go on."""
        pathlib.Path(self._folder, 'posted ' + name).touch()

    def wait_for(self, name):
        """Waits until `name` is posted, by a role or the test."""
        while not self.is_posted(name):
            time.sleep(0.002)

    def is_posted(self, name):
        """Whether `name` is posted, by a role or the test."""
        return os.path.exists(os.path.join(self._folder, 'posted ' + name))

    def all_have_posted(self, name):
        """Whether every worker has posted `name` with its number."""
        tasks = range(len(self.cluster['worker']))
        return all(self.is_posted('%s %d' % (name, task)) for task in tasks)

    def meet(self, name):
        """Waits until all workers have called this."""
        self.post('%s %d' % (name, self.task))
        for task in range(len(self.cluster['worker'])):
            self.wait_for('%s %d' % (name, task))


def serve(role):
    """The function of a parameter server: it never ends."""
    role.server().join()


class Job:
    """A job whose workers run ``function(role, *args)``, each in a process of its own.

    Leaving the block kills what still runs. If it is left by an error, the roles' logs are shown.

    Args:
      function: of a module's top level. It gets a :class:`Role`, and a fresh default graph.
      *args: for the function; anything that can be pickled.
      ps: the number of parameter servers.
      workers: the number of workers.
      start: whether all start at once; otherwise `start` starts them.
    """

    def __init__(self, function, *args, ps=1, workers=2, start=True):
        self._function, self._args = function, args
        ports = iter(free_ports(ps + workers))
        self.cluster = {
            job: ['127.0.0.1:%d' % next(ports) for _ in range(number)]
            for job, number in (('ps', ps), ('worker', workers))
        }
        self._starts = start
        self._processes = {}
        self._pipes = {}
        self._ended = {}
        self._folder = None

    def __enter__(self):
        self._folder = tempfile.mkdtemp(prefix='slimguard_job_')
        if self._starts:
            try:
                for job, addresses in self.cluster.items():
                    for task in range(len(addresses)):
                        self.start(job, task)
            except BaseException:
                self.__exit__(*sys.exc_info())
                raise
        return self

    def __exit__(self, error_type, error, traceback):
        try:
            if error_type is not None:
                for job, task in sorted(self._processes):
                    self._ask_where(job, task)
                    print('----- %s %d\n%s' % (job, task, self.log(job, task)[-4000:]))
        finally:
            for job, task in list(self._processes):
                self.kill(job, task)
            shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, job, task, function=None, *args):
        """Starts a role, or restarts it on its old port; a `function` replaces its usual one."""
        self.kill(job, task)
        if function is None:
            function, args = (serve, ()) if job == 'ps' else (self._function, self._args)
        with open(_work_of(self._folder, job, task), 'wb') as file:
            pickle.dump((function.__module__, self.cluster), file)
            pickle.dump((function, args), file)
        self._processes[job, task] = process = Forked(
            ['-c', _ROLE % str(ROOT), self._folder, job, task],
            environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self._pipes[job, task] = connection.Connection(os.dup(process.stdout.fileno()))
        self._ended.pop((job, task), None)

    def kill(self, job, task):
        """Kills a role with SIGKILL, if it runs. Its port is free when this returns."""
        process = self._processes.pop((job, task), None)
        if process is not None:
            process.kill()
            process.wait()
            process.stdout.close()
            self._pipes.pop((job, task)).close()

    def hear(self, job, task, timeout=_PATIENCE):
        """The next value that a role says.

        Raises:
          RuntimeError: if it ends instead.
          TimeoutError: if it says nothing for `timeout` seconds.
        """
        if (job, task) not in self._ended:
            word, said = self._next(job, task, timeout)
            if word == 'said':
                return said
            self._ended[job, task] = said
        raise RuntimeError('%s %d has ended: %r' % (job, task, self._ended[job, task]))

    def wait(self, job, task, timeout=_PATIENCE):
        """Waits for the end of a role. Returns how it :class:`Ended`.

        Raises:
          TimeoutError: if it still runs after `timeout` seconds; the message says where each of its
            threads stood.
        """
        end = time.time() + timeout
        while (job, task) not in self._ended:
            word, said = self._next(job, task, end - time.time())
            if word == 'ended':
                self._ended[job, task] = said
        return self._ended[job, task]

    def has_ended(self, job, task):
        """Whether a role has ended by itself. There must be nothing to hear from it."""
        return (job, task) in self._ended or self._pipes[job, task].poll()

    def wait_for_workers(self, timeout=_PATIENCE):
        """Waits for the end of all workers. Returns how each `Ended`, by number."""
        end = time.time() + timeout
        workers = range(len(self.cluster['worker']))
        return [self.wait('worker', task, end - time.time()) for task in workers]

    def post(self, name):
        """As `Role.post`."""
        pathlib.Path(self._folder, 'posted ' + name).touch()

    def log(self, job, task):
        """The stdout and stderr of a role, of all its processes."""
        log = pathlib.Path(_log_of(self._folder, job, task))
        return log.read_text(errors='replace') if log.exists() else ''

    def _next(self, job, task, timeout):
        pipe = self._pipes[job, task]
        if not pipe.poll(max(timeout, 0)):
            self._ask_where(job, task)
            where = self.log(job, task).rpartition('Current thread')
            raise TimeoutError('%s %d still runs\n%s' % (job, task, where[1] + where[2]))
        try:
            word, said = pipe.recv()
        except (EOFError, ConnectionError):
            word, said = 'ended', Ended(error='Killed')
        if word == 'ended':
            said = said._replace(log=self.log(job, task))
        return word, said

    def _ask_where(self, job, task):
        self._processes[job, task].send_signal(signal.SIGUSR1)
        time.sleep(0.5)  # until its answer is in its log


def _log_of(folder, job, task):
    return os.path.join(folder, '%s-%d.log' % (job, task))


def _work_of(folder, job, task):
    return os.path.join(folder, '%s-%d.work' % (job, task))


def free_ports(number):
    """Free ports of this machine, which no other of xdist's workers will take."""
    ports = []
    choose = random.Random()  # the tests' own seeds would choose the same in each process
    worker = int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0')[2:])
    workers = int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', 1))
    mine = _PORTS[worker::workers]
    while len(ports) < number:
        port = choose.choice(mine)
        with socket.socket() as probe:
            try:
                probe.bind(('127.0.0.1', port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def live(folder, job, task):
    """Runs a role in its own process, from its start to its end."""
    task = int(task)
    pipe = connection.Connection(os.dup(1), readable=False)
    for fd in (1, 2):
        os.dup2(os.open(_log_of(folder, job, task), os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    tf1.disable_eager_execution()
    try:
        with open(_work_of(folder, job, task), 'rb') as file:
            module, cluster = pickle.load(file)
            importlib.import_module(module)
            function, args = pickle.load(file)
        with tf.Graph().as_default():
            tf1.set_random_seed(1)
            ended = Ended(value=function(Role(job, task, cluster, folder, pipe), *args))
    except BaseException as error:
        traceback.print_exc()
        incident = getattr(error, 'incident', None)
        ended = Ended(
            error=type(error).__name__,
            message=str(error),
            incident=None if incident is None else incident.to_dict(),
        )
    sys.stdout.flush()  # the test reads the log as soon as it hears of the end
    sys.stderr.flush()
    pipe.send(('ended', ended))
    os._exit(0)
