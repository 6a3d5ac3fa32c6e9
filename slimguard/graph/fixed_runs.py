"""`fixed_run`: a run with fixed fetches, whose values share no memory with TensorFlow."""

from typing import Any, Callable, List, Sequence

import numpy as np
import tensorflow as tf

from slimguard.compat import tf_private

# On TensorFlow 2 a callable may return memory that others read and write: that of a variable, a
# constant, a fed array or a cached batch. `session.run` returns a copy.
_SHARES_MEMORY = not tf.__version__.startswith('1.')


def fixed_run(
    session, feeds: Sequence[str], fetches: Sequence[str], targets: Sequence[str]
) -> Callable[..., List[Any]]:
    """As `tf_private.callable_of`; it returns arrays that share no memory with others."""
    call = tf_private.callable_of(session, feeds, fetches, targets)
    return (lambda *values: _own(call(*values))) if _SHARES_MEMORY else call


def _own(values: List[Any]) -> List[Any]:
    for place, value in enumerate(values):
        if isinstance(value, np.ndarray):
            values[place] = value.copy()  # one after the other, so that not all are there twice
    return values
