"""What a training hands to the hooks that watch it: :class:`TrainingContext`."""

from typing import Any, Callable, Mapping, NamedTuple, Optional

import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.diagnosis.evidence import Evidence


class TrainingContext(NamedTuple):
    """What a training has. It is made once, and handed to every `GateWatcher` among the hooks.

    The defaults are what a watcher knows in a loop that hands it nothing, such as a
    MonitoredTrainingSession.

    Attributes:
      max_loss: a larger loss is an incident, where the watcher has no limit of its own.
      logdir: where the record and the checkpoints are, where the watcher has no logdir of its own.
      ends_job: whether 'raise', 'stop' and the chief's end are to end the other processes.
      saver: the training's saver, for rollbacks; None for the graph's.
      summary_writer: the `FileWriter` of the training's summaries, or None.
      evidence: by gate, what captures and examines its bad steps.
      is_chief: whether this process is the chief; None for what the name of its device says.
      joins_job: whether the process takes part in its job, if there is one.
      is_done: whether, in a session, there is nothing more to do.
    """

    max_loss: Optional[float] = None
    logdir: Optional[str] = None
    ends_job: bool = True
    saver: Optional[tf1.train.Saver] = None
    summary_writer: Any = None
    evidence: Mapping[gates.Gate, Evidence] = {}
    is_chief: Optional[bool] = None
    joins_job: bool = True
    is_done: Callable[[Any], bool] = lambda session: False
