"""Programs that tests start: Python, with the slimguard that the tests themselves were given."""

import os
import pathlib
import subprocess
import sys

import slimguard

ROOT = pathlib.Path(__file__).resolve().parent.parent


def environment():
    """For a Python process: quiet, and with our slimguard, installed or not."""
    here = os.path.dirname(os.path.dirname(slimguard.__file__))
    return dict(os.environ, PYTHONPATH=here, TF_CPP_MIN_LOG_LEVEL='3')


def python(*arguments, **kwargs):
    """Runs Python to its end. Returns the `CompletedProcess`, with what it wrote as text."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=kwargs.pop('stderr', subprocess.PIPE),
        text=True,
        env=environment(),
        timeout=300,
        **kwargs,
    )
