"""The gate: a train op is rewritten so that a bad step changes nothing.

:func:`guard` takes any train op and returns one that does the same, but writes only if everything
about to be written is finite. This package works on graphs. In a session it uses only the values
that a gate keeps there; it uses neither hooks nor slim.

    guard.py              guard()
    gate.py               the tensors and properties of a guarded train op
    arguments.py          checks what users give: a train op, its loss, the largest loss
    written_beside.py     writes that a run fetches with a train op: gated too, or refused
    runs_without_training.py  guards runs that write but do not train, such as summaries
    chief_update.py       the update that the chief of synchronous replicas makes
    histograms.py         histogram summaries that do not raise
    learning_rates.py     a factor for learning rates, to make updates smaller

    reading/              reads the graph, and plans: what a train op consists of
    building/             adds to the graph what the plan says: checks, copies, gated ops

How it works
------------
Each op that the train op needs belongs to one of three parts (reading/plan.py):

* *forward*: the ops that compute the loss and the gradients. They are never touched.
* *gated*: the writes (optimizer kernels, moving averages, the global step) and all ops that run
  after one of them. These ops are created a second time, behind a switch, and the guarded train op
  runs those clones. A dead branch is never executed, so a bad step writes nothing. The originals
  stay in the graph and are not run.
* *forward writes*: writes that the loss or a gradient waits for, such as the moving averages of
  ``slim.batch_norm(updates_collections=None)``, even if their variables are trainable. The gate
  cannot hold them back, so it copies the variable before the write, and restores it after a bad
  step. It also restores a counter of micro-batches, which says when accumulated gradients are
  applied; but not a counter that picks the batch (reading/batch_counters.py).

Two checks decide. The first is cheap: one sum of squares for each value (short vectors of one
length are joined first), and one comparison. If all sums are small, the step takes the *fast path*:
all values are finite, and even many such steps cannot overflow a variable (adding such small
numbers does not change a very large one). Else the second check decides exactly, value by value. It
also checks the variables *after* the update, and if one is bad, copies undo the update: this
catches a finite gradient that overflows inside an optimizer. On the fast path the exact check is a
dead branch.

The copies are checked as well, before the update begins. If a copy is not finite, the variable is
lost, or another process or thread has made it overflow and is about to restore it. Restoring that
copy would lose the variable for good, so the step is refused. Variables whose new value does not
depend on the old one are exempt: they may begin as Inf.

That all values are small is not enough for writes inside loops and functions, nor for kernels that
can make a NaN from small numbers (centered RMSProp, or an `epsilon` of zero; see
reading/kernels.py). If a train op has one of these, no step takes the fast path. Each step is a
*trial*: it copies the variables, writes them, and then checks what it wrote. If a kernel's argument
is no constant, each step compares the argument with its range instead. A value computed from
updated variables stays finite if it is, for example, an average or a copy of them
(reading/late_writes.py); writing any other such value makes each step a trial, too.

On a cluster, the task that computes the loss decides. Copies and their checks stay on the devices
of the variables; only signals and flags cross the network.
"""

from slimguard.gate.arguments import (
    as_train_op,
    require_loss,
    require_max_loss,
    require_optimizer,
    writes_something,
)
from slimguard.gate.building.announcement import Told
from slimguard.gate.building.builder import NoLossError
from slimguard.gate.building.copies import copies_ahead, copy_ahead_of_others
from slimguard.gate.building.flags import (
    ABOVE_MAX_LOSS,
    GRADIENT_NORM,
    Label,
    Verdict,
    explain,
    labels_in,
)
from slimguard.gate.building.outcome import Measures
from slimguard.gate.building.ranks import Exchange, Ranks, name_of
from slimguard.gate.gate import (
    Gate,
    gate_of,
    gates_of,
    original_of,
    ranks_in,
    variables_behind_gates,
)
from slimguard.gate.guard import guard
from slimguard.gate.learning_rates import (
    LearningRates,
    NoLearningRateError,
    learning_rates_of,
    scale_learning_rates,
)
from slimguard.gate.reading.losses import label_of, mean_of
from slimguard.gate.runs_without_training import guard_summary

__all__ = [
    'ABOVE_MAX_LOSS',
    'GRADIENT_NORM',
    'Exchange',
    'Gate',
    'Label',
    'LearningRates',
    'Measures',
    'NoLearningRateError',
    'NoLossError',
    'Ranks',
    'Told',
    'Verdict',
    'as_train_op',
    'copies_ahead',
    'copy_ahead_of_others',
    'explain',
    'gate_of',
    'gates_of',
    'guard',
    'guard_summary',
    'label_of',
    'labels_in',
    'learning_rates_of',
    'mean_of',
    'name_of',
    'original_of',
    'ranks_in',
    'require_loss',
    'require_max_loss',
    'require_optimizer',
    'scale_learning_rates',
    'variables_behind_gates',
    'writes_something',
]
