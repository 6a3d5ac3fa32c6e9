"""Kills processes that save between any two of their file operations, and reads the state file.

Not a test module: pytest does not collect it, but test_soak.py runs some lives of it. From
the root of the repository::

    python tests/programs/state_soak.py --lives=1000

Each life is a process of its own. It repairs the directory, resumes from it, saves, saves a step
again, has a save refused, and changes its working directory. It is killed before a random file
operation of ours or of TensorFlow's, or between the two files of a checkpoint; or it ends. Between
lives the directory is moved, or copied without the times of its files. After each life the
checkpoint that `tf.train.latest_checkpoint` names has to be whole and finite, and no older than the
one that was last published.
"""

import argparse
import os
import pathlib
import random
import shutil
import sys
import tempfile

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np
import tensorflow as tf
from tensorflow.python.lib.io import file_io

import slimguard
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.repair import resume_from_good
from slimguard.graph.sessions import SessionWrapper
from tests.helpers.processes import in_a_fork

tf1 = tf.compat.v1

# The actions in a life. Most are saves, since without saves the others have little to break.
DEEDS = ('save', 'save', 'save again', 'save again', 'refused', 'change directory', 'tear')
MOVES = ('stay', 'stay', 'move', 'copy', 'copy, and tear the original')


class Killed:
    """Ends the process ahead of its n-th file operation."""

    def __init__(self, after):
        self._left = after
        for module, names in (
            (os, ('link', 'open', 'remove', 'rename', 'replace', 'rmdir')),
            (file_io, ('delete_file', 'rename', 'write_string_to_file')),
        ):
            for name in names:
                setattr(module, name, self.counted(getattr(module, name)))

    def counted(self, function):
        def counted(*args, **kwargs):
            self.tick()
            return function(*args, **kwargs)

        return counted

    def tick(self):
        if self._left == 0:
            os._exit(9)
        self._left -= 1


class Tearing(SessionWrapper):
    """A session that is killed when a save has replaced one file of a checkpoint, not the other."""

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        paths = [(k, v) for k, v in (feed_dict or {}).items() if isinstance(v, str)]
        if not paths:  # no save
            return self._session.run(fetches, feed_dict, options, run_metadata)
        ((key, path),) = paths
        elsewhere = os.path.join(tempfile.mkdtemp(), 'model.ckpt')
        self._session.run(fetches, {**feed_dict, key: elsewhere})
        data = '.data-00000-of-00001'
        shutil.move(elsewhere + data, path + data)
        shutil.rmtree(os.path.dirname(elsewhere))
        os._exit(9)


def live(logdir, is_relative, use_resource, deeds, killed_after, say):
    """Does `deeds` in `logdir`; sends the serial number of each checkpoint that it published."""
    serial = tf1.get_variable('serial', initializer=0, use_resource=use_resource)
    weights = tf1.get_variable('w', [8], use_resource=use_resource)
    step = tf1.train.get_or_create_global_step()
    saver = slimguard.FiniteSaver(max_to_keep=2)
    poison = weights.assign(weights * np.nan)
    cure = weights.assign(tf.ones([8]))
    advance, count = step.assign_add(1), serial.assign_add(1)
    session = tf1.Session()
    resume_from_good(logdir)
    newest = tf1.train.latest_checkpoint(logdir)
    session.run(tf1.global_variables_initializer())
    if newest is not None:
        saver.restore(session, newest)
        listed = tf1.train.get_checkpoint_state(logdir).all_model_checkpoint_paths
        saver.recover_last_checkpoints(listed)
    session.run(cure)
    killed = Killed(killed_after)
    for deed in deeds:
        if deed == 'change directory':
            os.chdir(random.Random(killed_after).choice(['/', logdir, tempfile.gettempdir()]))
            continue
        folder = os.path.relpath(logdir) if is_relative else logdir
        session.run(cure if deed != 'refused' else poison)
        session.run([count] + ([advance] if deed == 'save' else []))
        killed.tick()
        saves = Tearing(session) if deed == 'tear' else session
        if saver.save(saves, os.path.join(folder, 'model.ckpt'), step) is not None:
            say(session.run(serial))
    os._exit(0)


def inspect(logdir, published):
    """What is wrong with the state that TensorFlow would resume from; None if nothing is."""
    newest = tf1.train.latest_checkpoint(logdir)
    if newest is None:
        return 'unreachable' if published else None
    if os.path.dirname(newest) != logdir:
        return 'of another folder'
    found = checkpoint_reader.read(newest)
    if not found.is_good:
        return str(found)
    serial = int(tf1.train.load_checkpoint(newest).get_tensor('serial'))
    return 'an older one, %d of %d' % (serial, published) if serial < published else None


def move(how, logdir, number):
    """Moves or copies `logdir`. Returns where it is then."""
    if how == 'stay':
        return logdir
    new = os.path.join(os.path.dirname(logdir), 'logs %d' % number)
    if how == 'move':
        os.rename(logdir, new)
        return new
    shutil.copytree(logdir, new, copy_function=shutil.copyfile)
    if how == 'copy, and tear the original':
        for file in os.scandir(logdir):
            if file.is_file():
                os.truncate(file.path, 1)
    return new


def soak(lives, seed, is_relative, out=print):
    """Returns what was wrong, a sentence for each life after which something was."""
    choose = random.Random(seed)
    wrong = []
    with tempfile.TemporaryDirectory() as parent:
        logdir, published = os.path.join(os.path.realpath(parent), 'logs'), 0
        os.mkdir(logdir)
        for number in range(lives):
            how = choose.choice(MOVES)
            logdir = move(how, logdir, number)
            found = inspect(logdir, published)
            deeds = [choose.choice(DEEDS) for _ in range(choose.randint(1, 4))]
            after = choose.choice([choose.randrange(60), 10**9])
            resource = bool(choose.getrandbits(1))
            if found is None:
                life, said = in_a_fork(live, logdir, is_relative, resource, deeds, after)
                status = os.waitpid(life, 0)[1] >> 8
                published = max([published] + [int(serial) for serial in said])
                said.close()
                found = 'it raised' if status not in (0, 9) else inspect(logdir, published)
            if found is not None:
                wrong.append('life %d (%s, then %s, %d): %s' % (number, how, deeds, after, found))
                out(wrong[-1])
                break
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--lives', type=int, default=1000, metavar='N')
    parser.add_argument('--seed', type=int, default=0, metavar='N')
    options = parser.parse_args()
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.FATAL)
    wrong = []
    for is_relative in (False, True):
        wrong += soak(options.lives, options.seed, is_relative)
    print('TensorFlow %s, twice %d lives: %d wrong' % (tf.__version__, options.lives, len(wrong)))
    sys.exit(bool(wrong))


if __name__ == '__main__':
    main()
