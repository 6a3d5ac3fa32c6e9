"""The advice in the error that ends a training: what may help with the cause found, and no more."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.diagnosis import evidence
from slimguard.incidents import advice, incident_groups, incident_log
from slimguard.report import report_data
from tests.helpers.models import LogLines

tf1 = tf.compat.v1

GOOD = np.ones([4, 2], np.float32)
LARGE, NAN, NEGATIVE = GOOD * 1e3, GOOD.copy(), GOOD.copy()
NAN[2, 1], NEGATIVE[2] = np.nan, -1

EXPLODES = "o back and go on with a smaller learning rate (on_nan='rol"
BY_LESS = "by a smaller factor than 0.5 (on_nan='rollback:3x0.2'"
IS_BATCH = "the batch, and not in the weights: a rollback does not help; on_nan='skip', or --on"


@pytest.mark.full
@pytest.mark.every_cell
@pytest.mark.parametrize(
    'on_nan, batch, says',
    [
        ('raise', LARGE, EXPLODES),
        ('rollback:1x0.5', LARGE, BY_LESS),
        ('rollback:1', NAN, IS_BATCH),
        ('rollback:1', NEGATIVE, None),  # the weights take part, so the batch is not blamed
        ('raise', NAN, IS_BATCH),
        ('raise', NEGATIVE, None),  # without a rollback, the cure of the cause is all the advice
    ],
)
def test_the_error_advises_what_fits_the_cause_and_the_policy(on_nan, batch, says, tmp_path):
    x = tf1.placeholder(tf.float32, [4, 2])
    weights = tf1.get_variable('w', [2, 1], initializer=tf1.ones_initializer())
    loss = tf.reduce_mean(tf.sqrt(tf.matmul(x, weights)))
    train_op = tf1.train.GradientDescentOptimizer(0.01).minimize(
        loss, tf1.train.get_or_create_global_step()
    )
    train_op = slimguard.guard(train_op, loss=loss)
    start = tf1.global_variables_initializer()
    with pytest.raises(slimguard.NanLossError) as caught:
        options = {'max_loss': 10.0, 'logdir': tmp_path, 'max_bundles': 1}
        with slimguard.watch(tf1.Session(), on_nan=on_nan, **options) as watched:
            watched.run(start)
            for given in (GOOD, GOOD, batch, GOOD, batch):
                watched.run(train_op, {x: given})
    told = caught.value.incident.advice
    assert told is None if says is None else says in told
    others = {EXPLODES, BY_LESS, IS_BATCH} - {says}
    assert not [each for each in others if each in str(caught.value)]
    # Advice against further rollbacks comes with the first.
    first = slimguard.read_incidents(tmp_path)[0]
    assert (IS_BATCH in (first.advice or '')) == (says is IS_BATCH)


def test_who_holds_spikes_already_is_not_told_to():
    spike = 'loss 5.035e+04 is 5.66e+03 times the median 8.9 of the last 30 good steps'
    assert 'spike' not in advice.for_an_explosion(0.5, spike)
    for reason in ('', 'above max_loss: loss total_loss'):
        assert '(spike=True, or --spike=default), train' in advice.for_an_explosion(0.5, reason)


def test_who_skips_already_is_not_told_to():
    told = [advice.for_a_bad_batch(skips) for skips in (True, False)]
    assert ['skip' in each for each in told] == [False, True]


def test_who_goes_back_already_is_not_told_to():
    told = [advice.for_lost_state(rolls_back) for rolls_back in (True, False)]
    assert ["on_nan='rollback'" in each for each in told] == [False, True]


class TestWhatIsTold:
    """The same in the log, the record, the error and on the page."""

    @pytest.fixture(autouse=True)
    def log_leaves_no_incident_out(self, monkeypatch):
        monkeypatch.setattr(incident_log, '_FIRST', 100)

    def train(self, build_loss, batches, rates=None, **kwargs):
        """Feeds batches [4, 2] to `build_loss(x, w)`; returns what was logged of incidents."""
        x, rate = tf1.placeholder(tf.float32, [4, 2]), tf1.placeholder(tf.float32, [])
        weights = tf1.get_variable('w', [2, 1], initializer=tf1.ones_initializer())
        loss = build_loss(tf.matmul(x, weights))
        train_op = tf1.train.GradientDescentOptimizer(rate).minimize(
            loss, tf1.train.get_or_create_global_step()
        )
        train_op = slimguard.guard(train_op, loss=loss)
        start = tf1.global_variables_initializer()
        with LogLines('slimguard') as lines:
            try:
                with slimguard.watch(tf1.Session(), **kwargs) as watched:
                    watched.run(start)
                    for batch, value in zip(batches, rates or [0.01] * len(batches)):
                        watched.run(train_op, {x: batch, rate: value})
            finally:
                told = [line for line in lines if line.startswith('incident ')]
        return [line.partition('): ')[2] for line in told]

    def test_one_that_is_not_examined_is_known_by_its_symptom_and_bad_data_are_named(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(evidence, '_FREE_SECONDS', 0.0)  # the first search takes all the time
        monkeypatch.setattr(evidence, '_SHARE', 1e-9)
        options = dict(on_nan='skip', logdir=tmp_path)
        batches = [GOOD, NEGATIVE, NEGATIVE, NAN, NEGATIVE]
        first, second, of_data, last = self.train(
            lambda y: tf.reduce_mean(tf1.log(y)), batches, **options
        )
        not_examined = '); cause not looked for: %s.' % evidence._NO_TIME
        assert first.startswith('log of a negative number')
        assert of_data.startswith('bad data: 1 NaN among 8 values, in row 2; Placeholder; ')
        for each in second, last:
            assert each.startswith('not finite: loss Mean, see incident 1; update not applied')
            assert each.endswith(not_examined)
        kinds = report_data.kinds_of(report_data.gather(str(tmp_path)))
        counts = [kind.said.partition(': ')[2] for kind in kinds]
        left_out = incident_groups.NOT_EXAMINED % 2
        assert counts == ['3 skipped. %s. Below is the first.' % left_out, '']

    def test_each_bad_sample_is_named_also_beyond_the_bundles(self, tmp_path):
        batches = [GOOD * 1.0 for _ in range(9)]
        for number, batch in enumerate(batches):
            batch[number % 4] = -1
        options = dict(on_nan='skip', logdir=tmp_path, max_bundles=2)
        told = self.train(lambda y: tf.reduce_mean(tf1.log(y)), batches, **options)
        rows = ['in row %d' % (number % 4) for number in range(9)]
        assert [each in line for each, line in zip(rows, told)] == [True] * 9
        recorded = slimguard.read_incidents(tmp_path)
        assert [each in it.cause for each, it in zip(rows, recorded)] == [True] * 9

    def test_two_causes_of_one_symptom_are_two_kinds(self, tmp_path):
        def build_loss(y):
            logs = tf1.log(y + 2.0)
            return tf.reduce_mean(logs + tf1.log(5.0 - y))

        low, high = GOOD * 1.0, GOOD * 1.0
        low[1], high[1] = -2, 4
        batches = [low, low, high, low, high]
        told = self.train(build_loss, batches, on_nan='skip', logdir=tmp_path)
        assert [line.partition(', see incident ')[2][:1] for line in told] == [
            '',
            '1',
            '',
            '1',
            '3',
        ]
        (reason,) = {each.reason for each in slimguard.read_incidents(tmp_path)}
        assert reason == 'not finite: loss (Mean)'
        kinds = report_data.kinds_of(report_data.gather(str(tmp_path)))
        assert [kind.first.number for kind in kinds] == [1, 3]

    def test_an_explosion_is_told_by_the_jump_of_the_rate_before_it(self, tmp_path):
        batches, rates = [GOOD] * 20, [0.01] * 12 + [50.0] * 8
        with pytest.raises(slimguard.NanLossError) as caught:
            options = dict(on_nan='raise', max_loss=1e6, logdir=tmp_path)
            self.train(lambda y: tf.reduce_mean(tf.square(y - 1)), batches, rates, **options)
        why = 'he learning rate went from 0.01 to 50 at step 12; the loss followed 1 step later'
        assert 'loss %g): t%s\n' % (caught.value.incident.loss, why) in str(caught.value)
        (kind,) = report_data.kinds_of(report_data.gather(str(tmp_path)))
        assert kind.first.headline == 'T%s.' % why

    @pytest.mark.parametrize('rate, row', [(3.0, 1.5), (0.01, 1e20)])
    def test_an_explosion_without_a_jump_is_told_by_how_far_the_loss_grew(
        self, rate, row, tmp_path
    ):
        last = GOOD.copy()
        last[2] = row
        batches = [last] * 40 if rate > 1 else [GOOD] * 20 + [last]
        with pytest.raises(slimguard.NanLossError) as caught:
            options = dict(on_nan='raise', logdir=tmp_path)
            loss = lambda y: tf.reduce_mean(tf.square(y - 1))  # noqa: E731
            self.train(loss, batches, [rate] * len(batches), **options)
        (kind,) = report_data.kinds_of(report_data.gather(str(tmp_path)))
        headline, to_do, commands = kind.first.headline, kind.first.to_do, kind.first.commands
        if rate > 1:
            assert headline.startswith('The loss went from ') and ' to ' in headline
            assert headline.endswith('; then Square overflowed.')
            assert 'row' not in headline and len(commands) == 1
            assert 'look at the batch of that step. Go back and go on with a smaller' in to_do
            assert 'what to do: %s\n' % to_do in str(caught.value)
            # The reason has no second number after it: the headline has the loss already.
            ruined = 'the weights are taken for ruined, though they are finite'
            assert caught.value.incident.reason.endswith(ruined)
        else:  # a similar step, but with good weights and a bad row in the batch
            assert 'in row 2' in headline and commands[1].endswith(' --without 2')
            assert 'learning rate' not in to_do
        assert 't' + headline[1:-1] in str(caught.value) or rate < 1

    def test_one_update_that_made_the_weights_huge_has_ruined_what_is_saved(self, tmp_path):
        with LogLines() as lines, pytest.raises(slimguard.NanLossError) as caught:
            loss = lambda y: tf.reduce_mean(tf.square(y - 1))  # noqa: E731
            self.train(loss, [GOOD] * 2, [1e25] * 2, on_nan='raise', logdir=tmp_path)
        assert advice.LARGE_WEIGHTS in str(caught.value)
        (*_, last) = lines
        assert last.endswith(
            '; its weights are taken for ruined, and there is no earlier checkpoint'
        )

    def test_a_slow_explosion_has_ruined_what_is_saved(self, tmp_path):
        """The loss grows by a fifth in each step: it is never far above the losses before."""
        rate = (1 + 1.2**0.5) / 4
        with LogLines() as lines, pytest.raises(slimguard.NanLossError) as caught:
            options = dict(on_nan='raise', logdir=tmp_path)
            loss = lambda y: 1e30 * tf.reduce_mean(tf.square(y - 1))  # noqa: E731
            self.train(loss, [GOOD] * 200, [1e-30 * rate] * 200, **options)
        assert 'the loss went from ' in str(caught.value)
        assert caught.value.incident.reason.endswith(
            'the weights are taken for ruined, though they are finite'
        )
        (*_, last) = lines
        assert last.endswith(
            '; its weights are taken for ruined, and there is no earlier checkpoint'
        )
