"""Training on parameter servers and workers, each a process of its own on loopback."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.checkpoints import checkpoint_reader
from tests.helpers.jobs import Job
from tests.helpers.models import records_in

tf1 = tf.compat.v1
slim = compat.import_slim()

STEPS = 24
# The draws that workers make together, so that each has its bad ones.
TOGETHER = 8


class Model:
    """A linear model behind a batch norm, with batches that are bad at given draws.

    Attributes:
      drawn: the number of batches drawn so far.
    """

    def __init__(self, role, bad=(), on_draw=None, resource=False, partitions=None, sync=False):
        self.drawn = 0
        self._role, self._bad, self._on_draw = role, bad, on_draw
        with role.device():
            self.step = tf1.train.get_or_create_global_step()
            x = tf1.py_func(self._draw, [], tf.float32, stateful=True)
            x.set_shape([4, 6])
            partitioner = partitions and tf1.fixed_size_partitioner(partitions)
            with tf1.variable_scope('', use_resource=resource, partitioner=partitioner):
                net = slim.batch_norm(x, is_training=True, decay=0.9, scope='bn')
                net = slim.fully_connected(net, 1, activation_fn=None, scope='fc')
            self.loss = tf.reduce_mean(tf.square(net - 1.0))
            optimizer = tf1.train.MomentumOptimizer(0.02, 0.9)
            self.train_op, self.sync = role.train_op(self.loss, optimizer, sync)

    def _draw(self):
        draw = self.drawn
        self.drawn += 1
        if self._on_draw is not None:
            self._on_draw(draw)
        x = np.random.RandomState(100 * self._role.task + draw).randn(4, 6).astype(np.float32)
        if draw in self._bad:
            x[2, 1] = np.nan
        return x


class Ends(tf1.train.SessionRunHook):
    """Posts when the chief has made the state; the chief ends the job after all bad draws.

    A worker that looks for the state too early looks again only after 30 s.
    """

    def __init__(self, role, step):
        self._role, self._step = role, step
        self.step = None

    def after_create_session(self, session, coord):
        if self._role.is_chief:
            self._role.post('state')

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._step)

    def after_run(self, run_context, run_values):
        if self._role.is_chief and run_values.results >= STEPS:
            if self._role.all_have_posted('all bad'):
                run_context.request_stop()

    def end(self, session):
        self.step = int(session.run(self._step))


def together(role, sync):
    """Keeps workers together for some draws; synchronous ones do so by themselves."""

    def on_draw(draw):
        if draw == 0 or (draw < TOGETHER and not sync):
            role.meet('draw %d' % draw)
        if draw == TOGETHER:
            role.post('all bad %d' % role.task)

    return on_draw


def start(role):
    """Starts the server, and waits until the chief has made the state. Returns the master."""
    master = role.server().target
    if not role.is_chief:
        role.wait_for('state')
    return master


def told(hook, ends, model):
    """The result of a worker."""
    return {
        'incidents': [incident.to_dict() for incident in hook.incidents],
        'drawn': model.drawn,
        'step': ends.step,
    }


def train(role, logdir, bad, kwargs):
    """Trains with `slimguard.train`; `bad` has the bad draws of some workers."""
    model = Model(role, bad.get(role.task, ()), together(role, kwargs['sync']), **kwargs)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    ends = Ends(role, model.step)
    loss = slimguard.train(
        model.train_op,
        logdir,
        master=start(role),
        is_chief=role.is_chief,
        log_every_n_steps=0,
        save_interval_secs=0.05,
        save_summaries_secs=0,
        session_config=role.config(),
        sync_optimizer=model.sync,
        hooks=[hook, ends],
    )
    assert np.isfinite(loss)
    return told(hook, ends, model)


def monitored(role, logdir, bad, kwargs):
    """Trains in a MonitoredTrainingSession."""
    model = Model(role, bad.get(role.task, ()), together(role, kwargs['sync']), **kwargs)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip', logdir=logdir)
    ends = Ends(role, model.step)
    start(role)
    role.train_monitored(model.train_op, logdir, [hook, ends], model.sync, save_checkpoint_steps=4)
    return told(hook, ends, model)


def require_good_checkpoints(logdir):
    """Requires that all checkpoints are finite. Returns the step of the newest."""
    found = [
        checkpoint_reader.read(each.path) for each in checkpoint_reader.checkpoints_in(str(logdir))
    ]
    assert found and all(finding.is_good for finding in found), found
    return found[-1].step


ONE, CHIEF, ALL = {1: [2, 5, 6]}, {0: [1, 3, 4]}, {0: [1], 1: [1, 2], 2: [3, 4, 5]}


# Each pair of values occurs in one of the jobs: the bad draws, the loop, whether workers wait for
# each other, the numbers of servers and workers, and the kind of variables.
JOBS = [
    (ONE, train, False, (1, 2), False),
    (ONE, monitored, True, (2, 3), True),
    (CHIEF, train, True, (1, 2), True),
    (CHIEF, monitored, False, (2, 3), False),
    (ALL, train, False, (2, 3), True),
    (ALL, monitored, True, (1, 2), False),
]


@pytest.mark.parametrize(
    'bad, function, sync, counts, resource', JOBS, ids=lambda it: getattr(it, '__name__', None)
)
def test_workers_skip_alone_however_the_job_is_built(
    tmp_path, bad, function, sync, counts, resource
):
    """Synchronous workers, too: a bad batch stalls no worker and uses up no token."""
    ps, workers = counts
    bad = {task: draws for task, draws in bad.items() if task < workers}
    kwargs = {'sync': sync, 'resource': resource, 'partitions': 2 if ps == 2 else None}
    with Job(function, str(tmp_path), bad, kwargs, ps=ps, workers=workers) as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None] * workers, ended
    told = [end.value for end in ended]
    for task, worker in enumerate(told):
        assert len(worker['incidents']) == len(bad.get(task, ()))
        assert {incident['action'] for incident in worker['incidents']} <= {'skip'}
    good = sum(worker['drawn'] - len(worker['incidents']) for worker in told)
    if sync:
        # An update takes as many good batches as there are workers; late ones are dropped.
        assert good >= workers * max(worker['step'] for worker in told)
    else:
        assert good == max(worker['step'] for worker in told)
    assert require_good_checkpoints(tmp_path) >= STEPS
    assert len(records_in(str(tmp_path))) == sum(map(len, bad.values()))


def state_at_each_draw(role, bad, sync, resource):
    """Reads the servers' state before each batch by another session, while all workers wait."""
    states = []

    def on_draw(draw):
        role.meet('drawn %d' % draw)
        if role.is_chief and draw:
            values = reader.run(variables)
            states.append({v.name: np.asarray(x).tobytes() for v, x in zip(variables, values)})
        role.meet('read %d' % draw)

    model = Model(role, bad, on_draw, resource=resource, sync=sync)
    variables = tf1.global_variables()
    reader = tf1.Session(role.server().target, config=role.config())
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    hooks = [hook, Ends(role, model.step)]
    if sync:
        # Without spare tokens, a worker's step ends with the update that its batch is part of.
        hooks.append(model.sync.make_session_run_hook(role.is_chief, num_tokens=0))
    with tf1.train.MonitoredTrainingSession(
        start(role),
        role.is_chief,
        hooks=hooks,
        log_step_count_steps=None,
        config=role.config(),
        stop_grace_period_secs=1,
    ) as session:
        for _ in range(6):
            session.run(model.train_op)
    return states, [incident.step for incident in hook.incidents]


@pytest.mark.full
@pytest.mark.parametrize('sync, resource', [(False, True), (True, False)])
def test_an_incident_leaves_every_bit_on_the_servers_as_it_was(sync, resource):
    workers = 2 if sync else 1  # all the batches of an update are bad, or the only writer's
    with Job(state_at_each_draw, [3], sync, resource, ps=2, workers=workers) as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None] * workers, ended
    states, _ = ended[0].value
    assert [steps for _, steps in (end.value for end in ended)] == [[3]] * workers
    changed = [
        {name for name in before if before[name] != after[name]}
        for before, after in zip(states, states[1:])
    ]
    # The states are those before draws 1 to 5.
    assert [bool(names) for names in changed] == [True, True, False, True]
    assert {'global_step:0', 'bn/moving_mean:0', 'fc/weights/Momentum:0'} <= changed[0]
