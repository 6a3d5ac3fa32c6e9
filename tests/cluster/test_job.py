"""All processes of a job act on an event in one of them. Real processes on loopback."""

import os
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.checkpoint_files import step_in_name
from slimguard.cluster import rounds
from slimguard.cluster.job_table import OwnEntry, SharedTable
from slimguard.cluster.sync_replicas import Replicas
from slimguard.incidents import record_file
from slimguard.incidents.incident import Incident
from tests.helpers.jobs import Job
from tests.helpers.models import Linear, records_in, train_quietly

tf1 = tf.compat.v1
slim = compat.import_slim()

WORKERS = 2
# The draws that all workers make together, so that none is done before the others begin.
TOGETHER = 3
BAD = 8
# Enough steps for a process to be killed and started again meanwhile.
STEPS = 200


class Count:
    """Every step adds one to a variable, and one more for each rollback before its beginning.

    So the variable shows if a step that began before a rollback is written after it.
    """

    def __init__(self, role, options):
        self.role, self.options = role, options
        self.hook = None
        self.drawn = 0
        self.entered = []
        with role.device():
            self.step = tf1.train.get_or_create_global_step()
            x = tf1.py_func(self._draw, [], tf.float64, stateful=True)
            x.set_shape([])
            self.count = tf1.get_variable(
                'count', [], tf.float64, initializer=tf1.zeros_initializer(), use_resource=True
            )
            self.loss = tf.identity(-x * self.count, name='loss')
            optimizer = tf1.train.GradientDescentOptimizer(1.0)
            self.train_op, self.sync = role.train_op(self.loss, optimizer, options.get('sync'))

    def _draw(self):
        draw = self.drawn
        self.drawn += 1
        before = self.hook.job.rollbacks  # read first: the job may roll back during the step
        together = self.options.get('together', TOGETHER)
        meets = draw == 0 or (draw < together and not self.sync)
        if meets and not self.options.get('lonely'):
            self.role.meet('draw %d' % draw)
        if draw in self.options.get('waits', {}) and self.role.is_chief:
            self.role.wait_for(self.options['waits'][draw])
        time.sleep(self.options.get('pause', 0.01))
        again = before and self.options.get('bad_once_rolled_back') == self.role.task
        if again or draw in self.options['bad'].get(self.role.task, ()):
            return np.float64('nan')
        return np.float64(1 + before)


class Thief(tf1.train.SessionRunHook):
    """Takes so many tokens that all workers wait for more.

    Then a thread fails, as when a server is gone; or it takes them after the other worker's end.
    """

    def __init__(self, model):
        self._model, self._has_stolen = model, False

    def begin(self):
        self._steal = self._model.sync._sync_token_queue.dequeue()

    def after_create_session(self, session, coord):
        if self._model.role.is_chief and not self._has_stolen:
            self._has_stolen = True
            threading.Thread(target=self._work, args=[session, coord], daemon=True).start()

    def _work(self, session, coord):
        fails = self._model.options['steals'] == 'and fails'
        self._model.role.wait_for('draw 0 1' if fails else 'left 1')
        for _ in range(4):
            threading.Thread(target=self._take, args=[session], daemon=True).start()
        if not fails:
            return
        time.sleep(1)
        try:
            raise tf.errors.UnavailableError(None, None, 'a server is gone')
        except tf.errors.UnavailableError as error:
            coord.request_stop(error)

    def _take(self, session):
        try:
            session.run(self._steal)
        except (tf.errors.OpError, RuntimeError):
            pass  # the session was closed while it waited


class Entered(tf1.train.SessionRunHook):
    """Notes the state at each start of a session in this process."""

    def __init__(self, model):
        self._model = model

    def after_create_session(self, session, coord):
        model = self._model
        model.entered.append([float(v) for v in session.run([model.count, model.step])])
        model.role.say('entered')
        model.role.post('entered %d %d' % (len(model.entered), model.role.task))
        if model.role.is_chief:
            model.role.post('state')


class EndsOnce(tf1.train.SessionRunHook):
    """Ends the chief's training at step 60 or later, once all workers have posted a name."""

    def __init__(self, model):
        self._model = model

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._model.step)

    def after_run(self, run_context, run_values):
        role, name = self._model.role, self._model.options['once']
        if role.is_chief and run_values.results >= 60 and role.all_have_posted(name):
            run_context.request_stop()


def train(role, logdir, options):
    """The function of all workers. Returns their results; raises a NanLossError as it comes."""
    if not role.is_chief and not options.get('early'):
        # A worker that looks for the state too early looks again only after half a minute.
        role.wait_for('state')
    model = Count(role, options)
    rolled_back = []

    def on_rollback(session, incident):
        rolled_back.append(incident.worker)

    on_nan = options['on_nan']
    if on_nan == 'rollback':
        on_nan = slimguard.Rollback(
            options.get('max_times', 3), on_rollback, options.get('learning_rate')
        )
    hook = model.hook = slimguard.NanLossHook(
        model.loss, on_nan=on_nan, logdir=logdir, ends_job=options.get('ends_job', True)
    )
    steps = options['steps'].get(role.task)
    run = _monitored if options.get('monitored') else _train
    hooks = [hook, Entered(model)] + ([Thief(model)] if options.get('steals') else [])
    if options.get('once'):
        steps, hooks = None, hooks + [EndsOnce(model)]
    run(role, logdir, model, hooks, steps, options)
    role.post('left %d' % role.task)
    return {
        'entered': model.entered,
        'drawn': model.drawn,
        'rolled back': rolled_back,
        'rollbacks': hook.job.rollbacks,
        'incidents': [(i.action, i.worker) for i in hook.incidents],
    }


def _train(role, logdir, model, hooks, steps, options):
    slimguard.train(
        model.train_op,
        logdir,
        master=role.server().target,
        is_chief=role.is_chief,
        number_of_steps=steps,
        startup_delay_steps=0 if role.is_chief else options.get('delay', 0),
        log_every_n_steps=0,
        save_interval_secs=options.get('save_secs', 0.1),
        save_summaries_secs=0,
        session_config=role.config(),
        sync_optimizer=model.sync,
        hooks=hooks,
        capture=False,
    )


def _monitored(role, logdir, model, hooks, steps, options):
    if steps is not None:
        hooks = hooks + [tf1.train.StopAtStepHook(last_step=steps)]
    save_secs = options.get('save_secs', 0.1)
    role.train_monitored(model.train_op, logdir, hooks, model.sync, save_checkpoint_secs=save_secs)


def job_of(logdir, ps=1, workers=WORKERS, **options):
    options.setdefault('bad', {})
    options.setdefault('steps', {task: 60 for task in range(workers)})
    options.setdefault('on_nan', 'skip')
    return Job(train, str(logdir), options, ps=ps, workers=workers)


def require_good_checkpoint(logdir):
    path = tf1.train.latest_checkpoint(str(logdir))
    assert checkpoint_reader.read(path).is_good, path
    return path


def wait_for_record(logdir):
    end = time.time() + 300
    record = record_file.path_in(str(logdir))
    while not os.path.exists(record) or not os.path.getsize(record):
        assert time.time() < end, 'no incident is recorded'
        time.sleep(0.02)


def kinds(*names):
    """Kinds of jobs, such as 'train-async-worker'."""
    found = []
    for name in names:
        loop, mode, role = name.split('-')
        found.append(pytest.param(loop == 'monitored', mode == 'sync', ROLES[role], id=name))
    return found


ROLES = {'chief': ('worker', 0), 'worker': ('worker', 1), 'ps': ('ps', 0)}
KINDS = 'monitored, sync, who'


@pytest.mark.full
def test_a_worker_may_end_alone(tmp_path):
    with job_of(
        tmp_path,
        bad={1: [BAD]},
        on_nan='raise',
        ends_job=False,
        steps={0: 60, 1: 10**6},
        waits={20: 'left 1'},
    ) as job:
        worker = job.wait('worker', 1)
        job.post('left 1')
        chief = job.wait('worker', 0)
    assert worker.error == 'NanLossError'
    assert chief.error is None and not chief.value['incidents']
    assert step_in_name(require_good_checkpoint(tmp_path)) >= 60


@pytest.mark.full
@pytest.mark.parametrize('monitored', [False, True], ids=['train', 'monitored'])
def test_the_chiefs_end_is_the_jobs(tmp_path, monitored):
    with job_of(tmp_path, monitored=monitored, steps={0: 20}) as job:
        chief, worker = job.wait_for_workers()
    assert chief.error is None and worker.error is None


@pytest.mark.full
@pytest.mark.parametrize(KINDS, kinds('train-async-worker', 'monitored-sync-chief'))
def test_nothing_from_before_a_rollback_is_written_after_it(tmp_path, monitored, sync, who):
    """In an asynchronous job, all workers also go on with the lowered learning rate."""
    who = who[1]
    with job_of(
        tmp_path,
        monitored=monitored,
        sync=sync,
        bad={who: [BAD, 2 * BAD]},
        on_nan='rollback',
        once='entered 3',
        learning_rate=None if sync else 0.5,
        # The others take ten times as long for a step, so there is always one under way.
        pause=0.05,
        save_secs=0.02,
    ) as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None] * WORKERS
    chief = ended[0].value
    asker = '/job:worker/task:%d' % who
    assert ended[who].value['incidents'] == [('rollback', asker)] * 2
    # The chief rolled back once for each incident, and all workers with it.
    assert chief['rolled back'] == [asker] * 2 and ended[1].value['rolled back'] == []
    assert [end.value['rollbacks'] for end in ended] == [2, 2]
    assert [len(end.value['entered']) for end in ended] == [3, 3]
    require_nothing_stale(tmp_path, chief, sync, WORKERS, factor=1.0 if sync else 0.25)
    rates = [record['learning_rate'] for record in records_in(str(tmp_path))]
    assert rates == [None, None] if sync else [0.5, 0.25]


@pytest.mark.full
def test_smaller_updates_of_a_synchronous_job_are_refused_at_once(tmp_path):
    options = dict(sync=True, on_nan='rollback', learning_rate=0.5, early=True)
    with job_of(tmp_path, **options) as job:
        ended = job.wait_for_workers()
    assert {end.error for end in ended} == {'NoLearningRateError'}


def require_nothing_stale(logdir, chief, sync, workers, factor=1.0):
    """Every step since the last rollback added one plus the number of rollbacks, times `factor`."""
    path = require_good_checkpoint(logdir)
    count, step = chief['entered'][-1]
    counted = tf1.train.load_variable(path, 'count') - count
    stepped = tf1.train.load_variable(path, 'global_step') - step
    steps, rest = divmod(counted, factor * (1 + chief['rollbacks']))
    assert rest == 0
    # A worker may be between its two writes when the chief saves.
    assert abs(steps - stepped) <= (0 if sync else workers - 1)


# The policy, the workers with a bad batch, how many servers and workers there are, the loop, and
# whether workers wait for each other.
JOBS = [
    ('raise', 'chief', (1, 2), 'train', 'async'),
    ('raise', 'one', (2, 3), 'monitored', 'sync'),
    ('stop', 'one', (1, 2), 'train', 'async'),
    ('stop', 'all', (2, 3), 'train', 'sync'),
    ('rollback', 'one', (2, 3), 'train', 'async'),
    ('rollback', 'all', (1, 2), 'monitored', 'sync'),
]


@pytest.mark.full
@pytest.mark.parametrize('on_nan, who, counts, loop, mode', JOBS)
def test_every_policy_in_every_job(tmp_path, on_nan, who, counts, loop, mode):
    ps, workers = counts
    tasks = {'chief': [0], 'one': [workers - 1], 'all': range(workers)}[who]
    with job_of(
        tmp_path,
        ps,
        workers,
        monitored=loop == 'monitored',
        sync=mode == 'sync',
        bad={task: [BAD] for task in tasks},
        on_nan=on_nan,
        max_times=10,
        together=BAD + 1,  # a chief that saves is slow: the others would be done before
        # So many steps that the workers end only by the incident of one of them.
        steps={task: 10**6 for task in range(workers)},
        once='entered 2' if on_nan == 'rollback' else None,
    ) as job:
        ended = job.wait_for_workers()
    error = 'NanLossError' if on_nan == 'raise' else None
    assert [end.error for end in ended] == [error] * workers
    require_good_checkpoint(tmp_path)
    records = records_in(str(tmp_path))
    names = ['/job:worker/task:%d' % task for task in tasks]
    assert {record['action'] for record in records} == {on_nan}
    assert {record['worker'] for record in records} <= set(names)
    if on_nan == 'raise':
        assert {end.incident['worker'] for end in ended} <= set(names)
        assert {end.incident['action'] for end in ended} == {'raise'}
    elif on_nan == 'stop':
        told = [incident for end in ended for incident in end.value['incidents']]
        assert told and set(told) <= {('stop', name) for name in names}
    else:
        assert 1 <= ended[0].value['rollbacks'] <= len(tasks)
        require_nothing_stale(tmp_path, ended[0].value, mode == 'sync', workers)
    if len(names) == 1:
        assert len(records) == 1


@pytest.mark.full
def test_rollbacks_are_counted_for_the_whole_job(tmp_path):
    with job_of(
        tmp_path,
        bad={0: [BAD]},
        bad_once_rolled_back=1,  # two incidents in one round are one rollback
        on_nan='rollback',
        max_times=1,
        steps={0: 10**6, 1: 10**6},
    ) as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == ['NanLossError'] * WORKERS
    actions = [record['action'] for record in records_in(str(tmp_path))]
    assert actions == ['rollback', 'raise']


@pytest.mark.full
@pytest.mark.parametrize(
    'monitored, sync, killed',
    kinds('train-async-ps', 'train-sync-chief', 'monitored-async-worker'),
)
def test_a_killed_process_is_started_again_and_the_job_ends_well(tmp_path, monitored, sync, killed):
    with job_of(
        tmp_path,
        monitored=monitored,
        sync=sync,
        bad={1: [BAD]},
        steps={0: STEPS, 1: STEPS},
        pause=0.02,
        lonely=1,
    ) as job:
        for task in range(WORKERS):
            job.hear('worker', task)
        wait_for_record(tmp_path)
        job.kill(*killed)
        before = records_in(str(tmp_path))
        saved = step_in_name(slimguard.latest_finite_checkpoint(str(tmp_path)))
        job.start(*killed)
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None] * WORKERS
    if killed != ('worker', 1):
        # All went back to the newest checkpoint: hooks saw a new session.
        times = [len(end.value['entered']) for end in ended]
        assert times == ([1, 2] if killed == ('worker', 0) else [2, 2])
        assert ended[0].value['entered'][-1][1] >= saved
    assert records_in(str(tmp_path))[: len(before)] == before
    assert step_in_name(require_good_checkpoint(tmp_path)) >= STEPS


@pytest.mark.full
def test_a_step_does_not_wait_for_tokens_that_nobody_hands_out_any_more(tmp_path):
    with job_of(tmp_path, sync=True, steals='and fails') as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None] * WORKERS
    assert [len(end.value['entered']) for end in ended] == [2, 2]
    assert step_in_name(require_good_checkpoint(tmp_path)) >= 60


@pytest.mark.full
def test_a_step_does_not_wait_for_a_worker_that_is_done(tmp_path):
    with job_of(tmp_path, sync=True, steals='late', steps={0: 40, 1: 10}) as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None] * WORKERS
    assert step_in_name(require_good_checkpoint(tmp_path)) >= 40


@pytest.mark.full
def test_who_comes_when_all_is_done_ends_at_once(tmp_path):
    with job_of(tmp_path, steps={0: 30, 1: 30}, lonely=1) as job:
        assert [end.error for end in job.wait_for_workers()] == [None] * WORKERS
        job.start('worker', 1)
        worker = job.wait('worker', 1)
    assert worker.error is None and worker.value['drawn'] <= 1


@pytest.mark.full
def test_who_waits_for_its_first_step_hears_of_the_end(tmp_path):
    with job_of(
        tmp_path,
        bad={0: [60]},
        on_nan='raise',
        delay=10**6,
        lonely=1,
        early=1,
        waits={59: 'entered 1 1'},
        steps={0: 10**7, 1: 10**7},
    ) as job:
        chief, worker = job.wait_for_workers()
    assert chief.error == worker.error == 'NanLossError'
    assert chief.incident['worker'] == worker.incident['worker'] == '/job:worker/task:0'


def beside_plain_slim(role, logdir):
    """The chief trains with plain slim until the other worker, under slimguard, has ended."""
    rounds._NO_CHIEF = 0.5
    step = [0]

    def draw():
        step[0] += 1
        time.sleep(0.01)
        return np.float64('nan' if step[0] == 3 and not role.is_chief else 1)

    with role.device():
        tf1.train.create_global_step()
        x = tf1.py_func(draw, [], tf.float64, stateful=True)
        x.set_shape([])
        loss = x * tf1.get_variable('w', [], tf.float64, initializer=tf1.zeros_initializer())
        optimizer = tf1.train.GradientDescentOptimizer(1.0)
        learning = slim.learning if role.is_chief else slimguard.learning
        train_op = learning.create_train_op(loss, optimizer, check_numerics=False)
    kwargs = {'session_config': role.config(), 'log_every_n_steps': 0}
    if role.is_chief:
        role.post('over 0')

        def train_step(session, *_):
            session.run(train_op)
            return 0.0, role.all_have_posted('over')

        kwargs['train_step_fn'] = train_step
    else:
        kwargs['on_nan'] = 'rollback'
    try:
        master = role.server().target
        learning.train(train_op, logdir, master=master, is_chief=role.is_chief, **kwargs)
    finally:
        role.post('over %d' % role.task)


@pytest.mark.full
def test_beside_a_chief_without_slimguard_there_is_no_rollback(tmp_path):
    with Job(beside_plain_slim, str(tmp_path)) as job:
        chief, worker = job.wait_for_workers()
    assert chief.error is None
    assert worker.error == 'NanLossError' and 'and no chief' in worker.incident['reason']
    assert 'does not train under slimguard' in worker.log


def test_a_shared_table_keeps_entries_by_number():
    server = tf1.train.Server({'holder': ['localhost:0']})
    device = '/job:holder/task:0'
    one, other = SharedTable(server.target, device), SharedTable(server.target, device)
    one.write(1, {'round': 3, 'incident': {'loss': 'nan'}})
    other.write(2**52, {'round': None})
    one.write(1, {'round': 4})
    assert other.read() == {1: {'round': 4}, 2**52: {'round': None}}
    assert other.exchange(2**52, {'round': 5}) == {1: {'round': 4}, 2**52: {'round': 5}}
    other.remove(1)
    one.close()
    assert one.read() == {2**52: {'round': 5}}  # opened again
    one.close()
    other.close()


def test_who_lost_its_session_when_the_job_ended_has_the_error_of_the_others():
    server = tf1.train.Server({'holder': ['localhost:0']})
    chief, worker = (
        OwnEntry(SharedTable(server.target, '/job:holder/task:0'), is_chief, 'a worker')
        for is_chief in (True, False)
    )
    bad = Incident.now(step=1, loss=None, reason='bad', tensors=(), strategy='hook')
    chief.write(round=7, ends=7, incident=bad.to_dict())
    worker.round = 7  # without it, the process would be new, and might wait for the next training
    coordinator = tf1.train.Coordinator()
    assert not rounds.Follower(worker).join(coordinator, lambda: False)
    with pytest.raises(slimguard.NanLossError, match='bad'):
        coordinator.raise_requested_exception()
    chief.table.close()
    worker.table.close()


def test_a_job_goes_back_once_when_a_worker_and_then_the_chief_ask_for_it():
    server = tf1.train.Server({'holder': ['localhost:0']})
    entry = OwnEntry(SharedTable(server.target, '/job:holder/task:0'), True, 'the chief')
    chief = rounds.Chief(entry, Replicas(tf.Graph(), entry.table), None)
    bad = Incident.now(step=1, loss=None, reason='bad', tensors=(), strategy='hook')
    chief.begin_round(bad)  # as a worker has asked
    chief.roll_back(bad)
    assert chief.rollbacks == 1
    entry.table.close()


def test_one_process_has_no_shared_table(tmp_path):
    server = tf1.train.Server.create_local_server()
    with tf.Graph().as_default():
        model = Linear()
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        hook = slimguard.NanLossHook(model.loss)
        hook.job = 'of an earlier training'
        train_quietly(train_op, tmp_path, 2, master=server.target, hooks=[hook])
    assert hook.job is None
