"""Small trainings with a bad batch at the step that a test chooses."""

import logging

import numpy as np
import tensorflow as tf

import slimguard
from slimguard.incidents import record_file

tf1 = tf.compat.v1

ONE_THREAD = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)


class Batches:
    """Input that counts how often it is drawn, and is bad at given draws (0 is the first).

    Attributes:
      drawn: the number of batches drawn so far.
      x: a float32 Tensor of shape [4, 3].
    """

    def __init__(self, bad=(), value=np.nan, end=None, where=(1, 2)):
        self.drawn = 0
        self._bad = bad if callable(bad) else lambda draw: draw in bad
        self._value, self._where = value, where
        self._end = end
        self.x = tf1.py_func(self._draw, [], tf.float32, stateful=True)
        self.x.set_shape([4, 3])

    def _draw(self):
        if self.drawn == self._end:
            raise StopIteration()  # py_func turns it into OutOfRangeError
        x = np.random.RandomState(self.drawn).randn(4, 3).astype(np.float32)
        if self._bad(self.drawn):
            x[self._where] = self._value
        self.drawn += 1
        return x


class Linear:
    """A linear model with a moving average of its input's mean, as batch norm has."""

    def __init__(self, bad=(), value=np.nan, end=None, where=(1, 2)):
        self.batches = Batches(bad, value, end, where)
        self.step = tf1.train.get_or_create_global_step()
        self.weights = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
        self.loss = tf.reduce_mean(tf.square(tf.matmul(self.batches.x, self.weights) - 1.0))
        self.optimizer = tf1.train.MomentumOptimizer(0.05, 0.9)

    def minimize(self):
        return self.optimizer.minimize(self.loss, global_step=self.step)


class Counted:
    """A user's wrapper of a session, which appends 'run' to a list for each run."""

    def __init__(self, session, calls):
        self._session = session
        self._calls = calls

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run(self, *args, **kwargs):
        self._calls.append('run')
        return self._session.run(*args, **kwargs)


def train_quietly(train_op, logdir, number_of_steps=6, **kwargs):
    """`slimguard.train` without log lines, and without anything that saves or draws beside it."""
    return slimguard.train(
        train_op,
        str(logdir),
        number_of_steps=number_of_steps,
        log_every_n_steps=0,
        save_interval_secs=0,
        save_summaries_secs=0,
        **kwargs,
    )


def state(session):
    """The bytes of every variable of the session's graph, by name."""
    with session.graph.as_default():
        variables = tf1.global_variables() + tf1.local_variables()
    values = session.run(variables)
    return {v.name: np.asarray(value).tobytes() for v, value in zip(variables, values)}


def non_finite(session):
    """Names of the float variables that hold a NaN or Inf."""
    with session.graph.as_default():
        variables = [v for v in tf1.global_variables() if v.dtype.base_dtype.is_floating]
    values = session.run(variables)
    return [v.name for v, value in zip(variables, values) if not np.isfinite(value).all()]


def checkpoint_at(logdir):
    """The global step of the newest checkpoint, and the names in it that are not finite."""
    path = tf1.train.latest_checkpoint(str(logdir))
    if path is None:
        return None, []
    reader = tf1.train.load_checkpoint(path)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return int(values['global_step']), [n for n, v in values.items() if not np.isfinite(v).all()]


def records_in(logdir):
    """The incidents in the record of a logdir, as dictionaries; every line must be an incident."""
    record = record_file.read_record(logdir)
    assert record.notes == []
    return [incident.to_dict() for incident in record.incidents]


def folder_of_start(folder):
    """The folder of the record of a script that saves nothing: the only start in `folder`."""
    (found,) = (folder / 'slimguard-logs').iterdir()
    return found


class LogLines(logging.Handler):
    """Collects the lines of a logger, at level INFO: `with LogLines() as lines: ...`."""

    def __init__(self, name='tensorflow'):
        logging.Handler.__init__(self)
        self.lines = []
        self._logger = logging.getLogger(name)

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        return self.lines

    def __exit__(self, *_):
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
