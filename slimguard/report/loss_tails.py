"""The loss of the last steps before incidents, out of the bundles, as parts of the curve."""

from typing import List, Optional, Sequence, Set, Tuple

import numpy as np

from slimguard.report.last_steps import LastSteps
from slimguard.report.loss_history import Curve, thin_out

_MOST_POINTS = 3000

Point = Tuple[float, float]


def with_tails(curve: Optional[Curve], histories: Sequence[LastSteps]) -> Optional[Curve]:
    """The curve with the last steps; these alone where there is no curve; None without any.

    Args:
      curve: what the event files hold.
      histories: the last steps of each bundle, the oldest bundle first. Steps that were not written
        are left out: what they would have done to the loss was never done.
    """
    tails = _tails(histories)
    if not tails:
        return curve
    total = sum(map(len, tails))
    thin = [thin_out(tail, max(4, _MOST_POINTS * len(tail) // total)) for tail in tails]
    return Curve('', [], 0, 0, thin) if curve is None else curve._replace(tails=thin)


def _tails(histories: Sequence[LastSteps]) -> List[np.ndarray]:
    """Arrays [points, 2] of steps and losses; of steps that two bundles hold only once."""
    tails: List[np.ndarray] = []
    seen: Set[Point] = set()
    for steps in histories:
        for run in _runs(_points(steps)):
            tails.extend(_new_parts(run, seen))
            seen.update(run)
    return tails


def _runs(points: List[Point]) -> List[List[Point]]:
    """The points from one rollback to the next."""
    runs: List[List[Point]] = [[]]
    for point in points:
        if runs[-1] and point[0] <= runs[-1][-1][0]:
            runs.append([])
        runs[-1].append(point)
    return runs


def _new_parts(run: List[Point], seen: Set[Point]) -> List[np.ndarray]:
    """What no other bundle holds of a run; a part begins where that of the other bundle ends."""
    parts: List[List[Point]] = [[]]
    for point in run:
        if point in seen:
            parts.append([point])
        else:
            parts[-1].append(point)
    return [np.array(part) for part in parts if not seen.issuperset(part)]


def _points(steps: LastSteps) -> List[Point]:
    if steps.loss is None:
        return []
    losses = steps.loss.filled(np.nan).tolist()
    return [
        (float(step), loss)
        for step, loss, written in zip(steps.step, losses, steps.written)
        if step is not None and written and np.isfinite(loss)
    ]
