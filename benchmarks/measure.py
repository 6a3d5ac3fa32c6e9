"""What the benchmarks share: runs that take turns, medians with their spread, tables.

On a machine that does other work as well, a single time says nothing. So the candidates run in
turns, a little of each, many times. Each round gives one ratio, and the benchmarks report the
median of the ratios, with the quartiles as its spread.
"""

import gc
import statistics
import sys
import time
from typing import Callable, Dict, NamedTuple, Sequence, Tuple


def require_arguments(doc: str, *known: str, takes_rounds: bool = False) -> None:
    """Ends a script for an unknown argument, and for `--help`, which prints `doc`."""
    given = sys.argv[1:]
    if {'-h', '--help'} & set(given):
        print(doc.strip())
        sys.exit()
    unknown = [each for each in given if not (each in known or takes_rounds and each.isdigit())]
    if unknown:
        sys.exit('unknown: %s. %s' % (' '.join(unknown), doc.split('\n\n')[1].strip()))


class Ratio(NamedTuple):
    """The time of a candidate, as a multiple of the first one's in the same round."""

    median: float
    low: float  # the lower quartile of the rounds
    high: float  # the upper quartile
    seconds: float  # the median time of one call
    cpu: float = float('nan')  # the same ratio of the time that all cores spent on it
    cpu_seconds: float = float('nan')  # the median of that time for one call

    def __str__(self) -> str:
        return '%.3f (%.3f to %.3f)' % self[:3]


def interleave(
    callables: Dict[str, Callable[[], object]], rounds: int = 40, per_round: int = 1
) -> Dict[str, Ratio]:
    """Runs each of `callables` `per_round` times in each round, and compares it with the first.

    The order changes from round to round. One more round at the beginning warms up.
    """
    names = list(callables)
    times, cpu_times = {name: [] for name in names}, {name: [] for name in names}
    for number in range(rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds, cpu_seconds = time_of(callables[name], per_round)
            if number:
                times[name].append(seconds)
                cpu_times[name].append(cpu_seconds)
    first, cpu_first = times[names[0]], cpu_times[names[0]]
    found = {}
    for name in names:
        cpu = ratio(cpu_times[name], cpu_first)
        found[name] = ratio(times[name], first)._replace(cpu=cpu.median, cpu_seconds=cpu.seconds)
    return found


def ratio(times: Sequence[float], first: Sequence[float]) -> Ratio:
    """The ratio of two series of seconds that were measured in turns."""
    ratios = [mine / other for mine, other in zip(times, first)]
    low, middle, high = quartiles(ratios)
    return Ratio(middle, low, high, statistics.median(times))


def quartiles(values: Sequence[float]):
    """Lower quartile, median, upper quartile."""
    ordered = sorted(values)

    def at(part: float) -> float:
        position = part * (len(ordered) - 1)
        below = int(position)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (position - below) * (ordered[above] - ordered[below])

    return at(0.25), at(0.5), at(0.75)


def time_of(call: Callable[[], object], times: int = 1) -> Tuple[float, float]:
    """The seconds that one of `times` calls takes, and the seconds that all cores spend on it."""
    gc.disable()  # a collection in one of them would be charged to it alone
    try:
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(times):
            call()
        end, cpu_end = time.perf_counter(), time.process_time()
    finally:
        gc.enable()
    return (end - start) / times, (cpu_end - cpu_start) / times


def table(rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = [[str(cell) for cell in row] for row in rows]
    lines = [head, ['---'] * len(head)] + body
    return '\n'.join('| %s |' % ' | '.join(line) for line in lines)
