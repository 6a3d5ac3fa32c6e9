"""Signals that a test sends to itself."""

import os
import signal


def press_ctrl_c() -> None:
    """Sends SIGINT to this process, and runs Python until its handler was called."""
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # it is called within a few of these
        pass
