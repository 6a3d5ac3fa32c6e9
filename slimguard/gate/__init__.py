"""The gate: a train op is rewritten so that a bad step changes nothing.

:func:`guard` takes any train op and returns one that does the same, except that nothing is written
unless everything about to be written is finite. This package works on graphs. Of a session it uses
only the values that a gate keeps there; it knows neither hooks nor slim.

    guard.py              guard()
    gate.py               the tensors and properties of a guarded train op
    arguments.py          checks what users give: a train op, its loss, the largest loss
    written_beside.py     writes fetched beside a train op: gated with it, or refused
    runs_without_training.py  guards runs that write and train nothing, such as summaries
    chief_update.py       the update that the chief of synchronous replicas makes
    histograms.py         histogram summaries that do not raise
    learning_rates.py     a factor for learning rates, to make updates smaller

    reading/              reads the graph, and plans: what a train op consists of
    building/             adds to the graph what the plan says: checks, copies, gated ops

How it works
------------
Looking back from the train op, every op falls into one of three parts (reading/plan.py):

* *forward*: the ops that compute the loss and the gradients. They are never touched.
* *gated*: the writes (optimizer kernels, moving averages, the global step) and all ops that run
  after one of them. These ops are created a second time, behind a switch, and the guarded train op
  runs those clones. A dead branch is never executed, so a bad step writes nothing. The originals
  stay in the graph and are not run.
* *forward writes*: writes that the loss or a gradient waits for, such as the moving averages of
  ``slim.batch_norm(updates_collections=None)``, even if their variables are trainable. They cannot
  be gated, so the gate copies the variable ahead of the write, and puts it back after a bad step.
  A counter of micro-batches, which says when accumulated gradients are applied, is put back too; a
  counter that picks the batch is not (reading/batch_counters.py).

Two checks decide. The first is cheap: one sum of squares for each value (short vectors of one
length are joined first), and one comparison. If all sums are small, the step takes the *fast path*:
all values are finite, and many such steps cannot overflow a variable either (adding so small a
number to a large one leaves the large one as it is). Else the second check decides exactly, value
by value. It also checks the variables *after* the update, and if one is bad, copies undo the
update: this catches a finite gradient that overflows inside an optimizer. On the fast path the
exact check is a dead branch.

The copies are checked as well, before the update begins. If a copy is not finite, its variable is
lost, or another process or thread that trains it has made it overflow and is about to put it back.
Restoring that copy would lose the variable for good, so the step is refused. Variables that are
assigned, not computed from their old value, are exempt: one may begin as an Inf.

Small values do not suffice for writes inside loops and functions, nor for kernels that can make a
NaN of small numbers (centered RMSProp, or an `epsilon` of zero; see reading/kernels.py). If a train
op has one of these, no step takes the fast path. Each step is a *trial*: it copies the variables,
writes them, and then checks what it wrote. If a kernel's argument is no constant, each step
compares the argument with its range instead. A value that is computed from updated variables stays
finite if it is an average of them, a copy or the like (reading/late_writes.py); writing any other
such value makes each step a trial, too.

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
