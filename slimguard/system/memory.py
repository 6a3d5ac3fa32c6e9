"""How much memory is free: :func:`available`."""

from typing import List, Optional

# The limit of a container and its use, in each of the two versions of Linux' control groups.
_LIMITS = (
    ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory.current'),
    (
        '/sys/fs/cgroup/memory/memory.limit_in_bytes',
        '/sys/fs/cgroup/memory/memory.usage_in_bytes',
    ),
)


def available() -> Optional[int]:
    """The memory that this process may still take, in bytes; None if the system does not say.

    This is Linux's "available" memory, or less if a container has less left.
    """
    amounts: List[int] = []
    for line in _read('/proc/meminfo').splitlines():
        if line.startswith('MemAvailable:'):
            amounts.append(int(line.split()[1]) << 10)
    for limit, used in _LIMITS:
        most, taken = _read(limit).strip(), _read(used).strip()
        if most.isdigit() and taken.isdigit():  # else there is no limit
            amounts.append(max(0, int(most) - int(taken)))
    return min(amounts, default=None)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ''
