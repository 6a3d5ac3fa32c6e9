"""Kills the processes of jobs at random moments, and looks at what becomes of the training.

Not a test module: pytest does not collect it, but test_soak.py runs a few faults of it. From
the root of the repository::

    python tests/programs/cluster_soak.py --faults=30

Jobs of one parameter server and two workers, and of two and three, asynchronous and synchronous,
in slim's loop and in a MonitoredTrainingSession, train with NaN batches under a fallback chain that
skips and rolls back to a checkpoint. SIGKILL kills a random role, be it the chief, another worker
or a parameter server, and the role is started again. Then every worker has to come past the step of
that fault, in time, from the newest checkpoint. Published checkpoints have to be finite and whole,
and the record of incidents must lose nothing. After some faults a job is asked to end, and has to.
"""

import argparse
import itertools
import os
import pathlib
import random
import sys
import tempfile
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.checkpoints import checkpoint_reader
from tests.helpers.jobs import Job

tf1 = tf.compat.v1
slim = compat.import_slim()

# Parameter servers, workers, synchronous, in a MonitoredTrainingSession.
KINDS = (
    (1, 2, False, False),
    (2, 3, True, False),
    (1, 2, True, False),
    (2, 3, False, False),
    (1, 2, False, True),
    (2, 3, True, True),
)
FAULTS_OF_A_JOB = 5
# How often a batch is bad.
BAD = 0.2
# How long a job may run from one fault to the next, and a role be away, in seconds.
LIFE, AWAY = 2.0, 1.0
# How long a job may take to come past a fault, or to end, in seconds.
LIMIT = 240.0


class Watch(tf1.train.SessionRunHook):
    """Keeps the step in a file, and the steps at which sessions began; ends when it is asked to."""

    def __init__(self, role, folder, step):
        self._role, self._step = role, step
        self._folder = pathlib.Path(folder)

    def after_create_session(self, session, coord):
        with open(str(self._folder / ('began %d' % self._role.task)), 'a') as began:
            began.write('%d\n' % session.run(self._step))

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._step)

    def after_run(self, run_context, run_values):
        (self._folder / ('step %d' % self._role.task)).write_text(str(run_values.results))
        if self._role.is_chief and (self._folder / 'end').exists():
            run_context.request_stop()


def train(role, folder, sync, monitored, is_relative, seed):
    rng = np.random.RandomState(seed + role.task)

    def draw():
        time.sleep(0.005)
        x = rng.randn(8, 16).astype(np.float32)
        if rng.rand() < BAD:
            x[0, 0] = rng.choice([np.nan, np.inf])
        return x

    with role.device():
        step = tf1.train.get_or_create_global_step()
        x = tf1.py_func(draw, [], tf.float32, stateful=True)
        x.set_shape([8, 16])
        with tf1.variable_scope('', use_resource=bool(seed % 2)):
            net = slim.batch_norm(x, is_training=True, scope='bn')
            net = slim.fully_connected(net, 32, scope='fc')
        loss = tf.reduce_mean(tf.square(net - 1.0))
        optimizer = tf1.train.MomentumOptimizer(0.01, 0.9)
        if sync:
            optimizer = role.synchronous(optimizer)
        train_op = slimguard.create_train_op(loss, optimizer, check_numerics=False)
    logdir = os.path.join(folder, 'logdir')
    if is_relative:
        os.chdir(folder)
        logdir = 'logdir'
    ladder = [slimguard.Skip(3), slimguard.Rollback(max_times=10**9)]
    hooks = [slimguard.NanLossHook(loss, on_nan=ladder, logdir=logdir), Watch(role, folder, step)]
    if not monitored:
        slimguard.train(
            train_op,
            logdir,
            master=role.server().target,
            is_chief=role.is_chief,
            log_every_n_steps=0,
            save_interval_secs=0.2,
            save_summaries_secs=0,
            summary_op=None,
            session_config=role.config(),
            sync_optimizer=optimizer if sync else None,
            hooks=hooks,
        )
        return
    role.train_monitored(
        train_op, logdir, hooks, optimizer if sync else None, save_checkpoint_secs=0.2
    )


class Watched:
    """The state of a job, as seen from outside."""

    def __init__(self, folder, workers):
        self._folder = pathlib.Path(folder)
        self._workers = workers
        self.logdir = str(self._folder / 'logdir')

    def steps(self):
        """The step at which each worker was last seen."""
        return [self._number('step %d' % task) for task in range(self._workers)]

    def forget_steps(self):
        for task in range(self._workers):
            self._folder.joinpath('step %d' % task).write_text('')

    def began(self):
        """The steps at which the chief began each of its sessions."""
        began = self._folder / 'began 0'
        return [int(line) for line in began.read_text().split()] if began.exists() else []

    def incidents(self):
        """The lines of the record."""
        record = pathlib.Path(self.logdir, 'slimguard', 'incidents.jsonl')
        text = record.read_text() if record.exists() else ''
        return text[: text.rfind('\n') + 1].splitlines()

    def published(self):
        """The newest checkpoint's step, and the verdict on all there are, or ''."""
        while True:
            newest = tf1.train.latest_checkpoint(self.logdir)
            found = [
                checkpoint_reader.read(each.path)
                for each in checkpoint_reader.checkpoints_in(self.logdir)
            ]
            if any(finding.non_finite for finding in found):
                return 0, 'poisoned'
            if newest is None:
                return 0, ''
            finding = checkpoint_reader.read(newest)
            if finding.is_good:
                return finding.step, ''
            # A chief that goes on deletes old checkpoints, this one perhaps.
            if newest == tf1.train.latest_checkpoint(self.logdir):
                return 0, 'unreadable'

    def _number(self, name):
        try:
            return int((self._folder / name).read_text() or -1)
        except (OSError, ValueError):
            return -1  # nothing was written yet, or half of it


def all_pass(job, watched, step, end):
    """Waits until each worker is past a step. Returns '', or a verdict on why one is not."""
    workers = range(len(job.cluster['worker']))
    while min(watched.steps()) <= step:
        for task in workers:
            if job.has_ended('worker', task):
                print('worker %d ended: %s' % (task, job.wait('worker', task)))
                return 'not resumed'
        if time.time() > end:
            return 'hung'
        time.sleep(0.02)
    return ''


def fault(job, watched, choose):
    """Kills a role and starts it again. Returns (the role, the step, the verdict, seconds)."""
    time.sleep(choose.random() * LIFE)
    roles = [(name, task) for name in job.cluster for task in range(len(job.cluster[name]))]
    # The chief is chosen as often as any other worker.
    name = choose.choice(['ps', 'worker', 'chief'])
    role = ('worker', 0) if name == 'chief' else choose.choice([r for r in roles if r[0] == name])
    incidents = watched.incidents()
    job.kill(*role)
    time.sleep(0.1)  # for roles that were just about to write their step
    at = max(watched.steps())
    saved, verdict = watched.published()
    sessions = len(watched.began())
    watched.forget_steps()
    started = time.time()
    time.sleep(choose.random() * AWAY)
    job.start(*role)
    stuck = all_pass(job, watched, at, started + LIMIT)
    seconds = time.time() - started
    verdict = verdict or stuck or watched.published()[1]
    if not verdict and min(watched.began()[sessions:] + [saved]) < saved:
        verdict = 'not resumed'
    if not verdict and not set(incidents) <= set(watched.incidents()):
        verdict = 'incidents lost'
    return '%s %d' % role, at, verdict or 'ok', seconds


def end(job, folder):
    """Asks the job to end. Returns the verdict."""
    pathlib.Path(folder, 'end').touch()
    try:
        errors = [ended for ended in job.wait_for_workers(LIMIT) if ended.error is not None]
    except TimeoutError:
        return 'hung'
    print(*errors, sep='\n', end='')
    return 'ended badly' if errors else 'ok'


def show_where_they_stand(job):
    for name in job.cluster:
        for task in range(len(job.cluster[name])):
            if not job.has_ended(name, task):
                try:
                    job.wait(name, task, timeout=0)
                except TimeoutError as error:
                    print(error)


def live(ps, workers, sync, monitored, is_relative, faults, choose):
    """Runs one job. Yields (the fault, the step, the verdict, seconds) for each fault."""
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(folder, workers)
        arguments = folder, sync, monitored, is_relative, choose.randrange(10**6)
        with Job(train, *arguments, ps=ps, workers=workers) as job:
            started = time.time()
            verdict = all_pass(job, watched, 0, started + LIMIT) or 'ok'
            yield 'start', 0, verdict, time.time() - started
            for _ in range(faults):
                if verdict == 'ok':
                    role, step, verdict, seconds = fault(job, watched, choose)
                    yield 'kill ' + role, step, verdict, seconds
            if verdict == 'ok':
                started, step = time.time(), max(watched.steps())
                verdict = end(job, folder)
                yield 'end', step, verdict, time.time() - started
            if verdict != 'ok':
                show_where_they_stand(job)


def soak(faults, seed, is_relative):
    """Returns the number of faults by verdict; all of them should be `ok`."""
    choose = random.Random(seed)
    found = dict.fromkeys(['ok', 'poisoned', 'unreadable', 'hung', 'not resumed'], 0)
    done = 0
    for kind in itertools.cycle(KINDS):
        ps, workers, sync, monitored = kind
        name = '%d + %d %s%s' % (ps, workers, 'a' * (not sync), 'sync')
        name += ' monitored' * monitored
        for what, step, verdict, seconds in live(
            *kind, is_relative, min(FAULTS_OF_A_JOB, faults - done), choose
        ):
            is_fault = what.startswith('kill')
            done += is_fault
            if is_fault or verdict != 'ok':
                found[verdict] = found.get(verdict, 0) + 1
            line = '%4d  %-21s  %-13s  at step %-6d  %5.1f s  %s'
            print(line % (done, name, what, step, seconds, verdict), flush=True)
        if done >= faults or sum(found.values()) - found['ok'] > faults:
            return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--faults', type=int, default=30, metavar='N')
    parser.add_argument('--seed', type=int, default=0, metavar='N')
    parser.add_argument('--relative', action='store_true', help='give the logdir as `logdir`')
    options = parser.parse_args()
    found = soak(options.faults, options.seed, options.relative)
    print('TensorFlow %s, %d faults: %s' % (tf.__version__, options.faults, found))
    sys.exit(sum(found.values()) != options.faults or found['ok'] != options.faults)


if __name__ == '__main__':
    # With this import the roles' processes find its functions by name.
    from tests.programs import cluster_soak

    cluster_soak.main()
