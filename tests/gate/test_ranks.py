"""Ranks that train together find a step bad together: two threads of this process, as two ranks.

A `py_func` in which both wait for each other adds up their values. The gate finds the ranks by a
collective of TensorFlow's with one member. tests/cluster/test_horovod.py has real ranks.
"""

import contextlib
import functools
import json
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import gate as gates
from slimguard.gate.building import rank_libraries
from slimguard.system.signals import SharedSignals

tf1 = tf.compat.v1

X = np.array([[1, 2], [3, 4]], np.float32)


class Meeting:
    """Adds up the values of two threads, as a library does for two ranks.

    Attributes:
      messages: the names of the sums, in order.
      told: the subjects of the texts that the ranks exchanged.
      signals: by rank, its `SharedSignals`.
    """

    def __init__(self):
        self.messages, self.told = [], []
        self.signals = [SharedSignals() for _ in range(2)]
        self._here = threading.local()
        self._barriers = {}
        self._values = {}
        self._is_over = False

    def ranks(self, step, nodes):
        rank = self._here.rank
        exchange = functools.partial(self._exchange, rank)
        return gates.Ranks(rank, 2, self.add, exchange, self.signals[rank])

    def _exchange(self, rank, subject, text):
        return self._meet(subject, rank, text, self.told)

    def _meet(self, name, rank, value, noted):
        barrier = self._barriers.setdefault(name, threading.Barrier(2, timeout=300))
        self._values[name, rank] = value
        if self._is_over:
            barrier.abort()
        if barrier.wait() == 0:
            noted.append(name)
        values = [self._values[name, each] for each in range(2)]
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()  # broken if the other rank leaves before this one wakes
        return values

    def add(self, vector, name):
        rank = self._here.rank

        def meet(value):
            return sum(self._meet(name, rank, value, self.messages))

        total = tf1.py_func(meet, [vector], tf.float32, stateful=True)
        total.set_shape(vector.shape)
        return total

    def leave(self):
        """Ends the waiting of the other rank with an error, since this rank has ended."""
        self._is_over = True
        for barrier in list(self._barriers.values()):
            barrier.abort()

    def run(self, train):
        """The results of `train(rank)` for two ranks, each in a thread of its own."""
        found = {}

        def work(rank):
            self._here.rank = rank
            try:
                with tf.Graph().as_default():
                    found[rank] = train(rank)
            except BaseException:
                self.leave()
                raise

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[rank] for rank in range(2)]


def session_of_rank():
    """A session with threads of its own, since each sum over the ranks blocks one of them."""
    config = tf1.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=4)
    return tf1.Session(config=config)


def of_one(value, key, members=1):
    """A collective of TensorFlow's; by default this process is the only member."""
    return tf.raw_ops.CollectiveReduce(
        input=value,
        group_size=members,
        group_key=1,
        instance_key=key,
        merge_op='Add',
        final_op='Id',
        subdiv_offsets=[0],
    )


class Model:
    """A weight whose gradient the ranks share, and a moving average that each has for itself."""

    def __init__(self, add, max_loss=None, has_more=False, optimizer=None):
        self.x = tf1.placeholder(tf.float32, [2, 2], name='x')
        self.given = tf1.placeholder(tf.float32, [], name='given')
        self.offset = tf1.placeholder(tf.float32, [], name='offset')
        ones, zeros = tf1.ones_initializer(), tf1.zeros_initializer()
        self.w = tf1.get_variable('w', [2, 1], initializer=ones)
        self.average = tf1.get_variable('average', [], trainable=False, initializer=zeros)
        error = tf.reduce_mean(tf.square(tf.matmul(self.x, self.w)))
        self.loss = tf.add(error, self.offset, 'sum')
        optimizer = optimizer or tf1.train.GradientDescentOptimizer(0.01)
        gradient = optimizer.compute_gradients(self.loss, [self.w])[0][0]
        self.shared = of_one(gradient, key=1)
        shared = tf.reshape(add(tf.reshape(self.shared, [-1]), 'gradient'), [2, 1]) / 2
        updates = [self.average.assign(self.given)]
        if has_more:
            more = tf1.get_variable('more', [], trainable=False, initializer=zeros)
            updates.append(more.assign(self.given))
        with tf.control_dependencies(updates):
            train_op = optimizer.apply_gradients([(shared, self.w)])
        self.train_op = slimguard.guard(train_op, loss=self.loss, max_loss=max_loss)
        self.gate = gates.gate_of(self.train_op)

    def feed(self, batch=X, offset=0.0, given=1.0):
        return {self.x: batch, self.offset: offset, self.given: given, self.gate.watched: True}


NAN_BATCH = np.array([[1, np.nan], [3, 4]], np.float32)
BAD = {  # by rank and draw: the feed, and the reason that both ranks give
    (1, 1): ({'batch': NAN_BATCH}, 'not finite: loss sum, gradient of w (on rank 1)'),
    (0, 3): ({'offset': np.nan}, 'not finite: loss sum (on rank 0)'),
    (1, 4): ({'given': np.inf}, 'not finite: update of average (on rank 1)'),
    (1, 6): ({'offset': 1e3}, 'above max_loss=500: loss sum (on rank 1)'),
}


def test_what_is_bad_on_one_rank_is_written_on_none_and_says_which(monkeypatch):
    """A good step takes one sum over the ranks."""
    meeting = Meeting()
    monkeypatch.setitem(rank_libraries.LIBRARIES, 'Collective', meeting.ranks)

    def train(rank):
        model, said = Model(meeting.add, max_loss=500.0), []
        with session_of_rank() as session:
            session.run(tf1.global_variables_initializer())
            for draw in range(8):
                fed, _ = BAD.get((rank, draw), ({}, ''))
                before = len(meeting.messages)
                fetched = [model.train_op, model.gate.written, model.gate.bad]
                _, written, bad = session.run(fetched, model.feed(**fed))
                reason = '' if written else model.gate.explain(bad).reason
                said.append((reason, session.run(model.w).tolist()))
                assert not written or sorted(meeting.messages[before:]) == ['fast', 'gradient']
        return said

    first, second = meeting.run(train)
    assert first == second
    assert {n: said for n, (said, _) in enumerate(first) if said} == {
        draw: said for (_, draw), (_, said) in BAD.items()
    }


class Training:
    """Collects the signals that a training is told of."""

    def __init__(self):
        self.told = []
        self.on_shared_signal = self.told.append


@pytest.mark.parametrize('is_trial', [False, True])
def test_a_signal_that_one_rank_hears_is_told_to_all_by_the_end_of_the_same_step(
    monkeypatch, is_trial
):
    """By the first sum of a step, which each step makes anyway."""
    meeting = Meeting()
    monkeypatch.setitem(rank_libraries.LIBRARIES, 'Collective', meeting.ranks)

    def train(rank):
        optimizer = tf1.train.RMSPropOptimizer(0.01, centered=True) if is_trial else None
        model, training, said = Model(meeting.add, optimizer=optimizer), Training(), []
        meeting.signals[rank].trainings.add(training)
        with session_of_rank() as session:
            session.run(tf1.global_variables_initializer())
            for draw in range(5):
                before = len(meeting.messages)
                if (rank, draw) == (1, 2):
                    meeting.signals[rank].hear(signal.SIGTERM)
                session.run(model.train_op, model.feed(given=np.inf if draw == 3 else 1.0))
                said.append(training.told[:])
                first = 'before' if is_trial else 'fast'
                assert meeting.messages[before:].count(first) == 1
        return said

    first, second = meeting.run(train)
    assert first == second == [[], [], [signal.SIGTERM], [signal.SIGTERM], [signal.SIGTERM]]
    assert meeting.told == ['checks']


def test_ranks_whose_graphs_differ_say_so_before_the_first_step(monkeypatch):
    meeting = Meeting()
    monkeypatch.setitem(rank_libraries.LIBRARIES, 'Collective', meeting.ranks)

    def train(rank):
        model = Model(meeting.add, has_more=rank == 1)
        with session_of_rank() as session:
            session.run(tf1.global_variables_initializer())
            with pytest.raises(tf.errors.InvalidArgumentError) as raised:
                session.run(model.train_op, model.feed())
            meeting.leave()
        return raised.value.message

    for said in meeting.run(train):
        assert 'graphs of the ranks differ' in said
        assert 'rank 1 checks what rank 0 does not (not finite once updated: more' in said


@pytest.mark.full
def test_a_step_that_is_examined_runs_no_collective_again(monkeypatch, tmp_path):
    """The result of a collective counts as drawn; the rank with the bad batch names the cause."""
    meeting = Meeting()
    monkeypatch.setitem(rank_libraries.LIBRARIES, 'Collective', meeting.ranks)

    def train(rank):
        model = Model(meeting.add)
        logdir = str(tmp_path) if rank == 0 else None
        hook = slimguard.NanLossHook(model.loss, on_nan='skip', logdir=logdir)
        with session_of_rank() as session:
            watched = slimguard.watch(session, hooks=[hook])
            session.run(tf1.global_variables_initializer())
            for draw in range(3):
                feed = model.feed(**BAD.get((rank, draw), ({}, ''))[0])
                del feed[model.gate.watched]
                watched.run(model.train_op, feed)
            evidence = hook._training.evidence[model.gate]
            drawn = [t.name for t in evidence.capture.sources]
            assert model.shared.name in drawn
        return hook.incidents[0].diagnosis

    first, second = meeting.run(train)
    assert meeting.messages.count('gradient') == 3
    assert first is None  # the cause is on the other rank
    assert 'bad data: 1 NaN among 4 values, in row 0' in second
    (incident,) = slimguard.read_incidents(str(tmp_path))
    assert incident.reason == BAD[1, 1][1]


@pytest.mark.full
def test_ranks_go_back_to_the_same_state_and_only_the_first_keeps_a_record(monkeypatch, tmp_path):
    """Only rank 0 needs a folder. The ranks' losses differ, and do not decide.

    Rank 0 also keeps the factor of the learning rate, and tells the others after a restart.
    """
    meeting = Meeting()
    monkeypatch.setitem(rank_libraries.LIBRARIES, 'Collective', meeting.ranks)

    def train(rank, draws=42):
        model = Model(meeting.add)
        logdir = str(tmp_path / str(rank))
        hook = slimguard.NanLossHook(model.loss, on_nan='rollback:3x0.5', logdir=logdir)
        with session_of_rank() as session:
            watched = slimguard.watch(session, hooks=[hook])
            session.run(tf1.global_variables_initializer())
            for draw in range(draws):
                offset = np.nan if (rank, draw) in ((1, 2), (1, 38)) else 10.0 ** (rank * draw / 9)
                feed = model.feed(offset=offset)
                del feed[model.gate.watched]
                watched.run(model.train_op, feed)
            factor = gates.learning_rates_of(session.graph).get(session)
            restored = [each.restored for each in hook.incidents]
            return session.run(model.w).tolist(), factor, restored

    first, second = meeting.run(train)
    assert first == second
    factor, (early, late) = first[1:]
    assert factor == 0.25
    assert [each[1] for each in meeting.run(functools.partial(train, draws=1))] == [0.25, 0.25]
    assert early == 'the state before the first step'
    assert late.startswith('a snapshot after ')
    assert len(slimguard.read_incidents(str(tmp_path / '0'))) == 2
    assert not (tmp_path / '1').exists()


def test_without_other_ranks_nothing_is_added_to_a_gate(monkeypatch):
    """Neither if the step has no collective, nor if the library has only one rank."""
    built = []
    for makes in (lambda step, nodes: None, lambda step, nodes: 1 / 0):
        monkeypatch.setitem(rank_libraries.LIBRARIES, 'Collective', makes)
        with tf.Graph().as_default() as graph:
            w = tf1.get_variable('w', [2])
            loss = tf.reduce_sum(tf.square(w))
            (gradient,) = tf.gradients(loss, [w])
            gradient = of_one(gradient, key=1) if not built else tf.identity(gradient)
            optimizer = tf1.train.GradientDescentOptimizer(0.1)
            gate = gates.gate_of(slimguard.guard(optimizer.apply_gradients([(gradient, w)]), loss))
            built.append([op.type for op in graph.get_operations() if op.name[:10] == 'slimguard/'])
            assert not gate.ranks.are_several
            assert all(label.kind != 'rank' for label in gate.labels)
    assert built[0] == built[1]


def test_workers_of_a_strategy_are_known_by_the_size_of_their_group(monkeypatch, caplog):
    """TF_CONFIG tells the ranks; without it, a log line says that each decides for itself."""
    cluster = {'cluster': {'worker': ['a:1', 'b:1']}}
    for config, ranks in ((json.dumps(cluster), (1, 2)), ('{}', (0, 1))):
        monkeypatch.setenv('TF_CONFIG', config)
        caplog.clear()
        caplog.set_level('WARNING', logger='slimguard')
        with tf.Graph().as_default(), tf.device('/job:worker/task:1/device:CPU:0'):
            w = tf1.get_variable('w', [2])
            (gradient,) = tf.gradients(tf.reduce_sum(tf.square(w)), [w])
            gradient = of_one(gradient, key=1, members=2)
            train_op = tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, w)])
            gate = gates.gate_of(slimguard.guard(train_op))
        assert (gate.ranks.rank, gate.ranks.size) == ranks
        assert ('each decides for itself' in caplog.text) == (config == '{}')
