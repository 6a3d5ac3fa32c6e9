"""Kills a training ahead of each operation of a rollback, and looks at what a restart begins with.

test_soak.py runs it. From the root of the repository::

    python tests/programs/killed_in_a_rollback.py

Each life is a process of its own. It saves steps 8, 16 and 24, and goes back with half the learning
rate: to a snapshot of step 11 or, where there is no memory for snapshots, to the checkpoint of step
8. The n-th life is killed ahead of the n-th file operation or run of the session in that rollback.
A restart may resume from either state with the full rate, but never from the abandoned state with
half of it.
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

import tensorflow as tf

import slimguard
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.repair import resume_from_good
from slimguard.compat import tf_private
from slimguard.system import memory
from slimguard.training.rollback import Rollbacks
from tests.helpers.models import Linear, train_quietly
from tests.helpers.processes import in_a_fork
from tests.programs.state_soak import Killed

tf1 = tf.compat.v1

ABANDONED, SNAPSHOT, CHECKPOINT, BACK_OFF = 24, 11, 8, 0.5


def live(logdir, has_memory, after, say):
    """Trains until the rollback, and exits with 0 once that is done."""
    if not has_memory:
        memory.available = lambda: 0
    roll_back = Rollbacks.roll_back

    def roll_back_and_die(*args):
        killed = Killed(after)
        session_class = tf_private.session_class()
        session_class.run = killed.counted(session_class.run)
        roll_back(*args)
        os._exit(0)

    Rollbacks.roll_back = roll_back_and_die
    model = Linear(bad=(25,))
    saver = tf1.train.Saver(max_to_keep=20)
    train_quietly(
        slimguard.create_train_op(model.loss, model.optimizer),
        logdir,
        26,
        saver=saver,
        hooks=[tf1.train.CheckpointSaverHook(logdir, save_steps=8, saver=saver)],
        on_nan=slimguard.Rollback(learning_rate=BACK_OFF),
    )


def left_in(logdir):
    """The global step and the factor of the learning rate that a restart begins with."""
    resume_from_good(logdir)
    finding = checkpoint_reader.read(tf1.train.latest_checkpoint(logdir))
    kept = pathlib.Path(logdir, 'slimguard', 'learning_rate.json')
    factor = json.loads(kept.read_text())['factor'] if kept.exists() else 1.0
    return finding.is_good and finding.step, factor


def killed_everywhere(has_memory):
    """The result of `left_in` after each life; the last life was not killed."""
    found, status = [], 9
    while status == 9:
        with tempfile.TemporaryDirectory() as logdir:
            life, said = in_a_fork(live, logdir, has_memory, len(found))
            status = os.waitpid(life, 0)[1] >> 8
            said.close()
            found.append(left_in(logdir))
    assert status == 0, 'it raised'
    return found


def main():
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.FATAL)
    for restored in (SNAPSHOT, CHECKPOINT):
        found = killed_everywhere(has_memory=restored == SNAPSHOT)
        print('TensorFlow %s, killed %d times: %s' % (tf.__version__, len(found) - 1, found))
        done = (restored, BACK_OFF)
        assert set(found) == {(ABANDONED, 1.0), (restored, 1.0), done} and found[-1] == done


if __name__ == '__main__':
    main()
