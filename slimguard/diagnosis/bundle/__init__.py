"""The bundle: a bad step in a folder, to be opened elsewhere, weeks later, without the user's code.

    logdir/slimguard/step-<step>/
      state.npz      the variables before the step, by the names of their ops
      drawn.npz      what the step drew, by the names of its tensors
      step.pb        the step as a GraphDef
      incident.json  what happened, the diagnosis, the ranges along the step, names and dtypes

:func:`write` makes one, :func:`read` opens one, :func:`paths` lists all in a log directory, on any
file system of `tf.io.gfile`. ``incident.json`` is written last and removed first: readers ignore a
folder without it. Nothing is pickled. A bundle that cannot be read raises `BundleError`. Still, a
graph is code, and code can read and write files: replay only bundles that you trust.

The files:

    arrays.py   arrays of every dtype in an .npz
    reading.py  the bundles of a log directory: listed, read
    writing.py  a bundle: named, written, removed
"""

from slimguard.diagnosis.bundle.reading import (
    Bundle,
    BundleError,
    folder,
    is_bundle,
    kind_in,
    paths,
    paths_in,
    read,
    read_json,
)
from slimguard.diagnosis.bundle.writing import write

__all__ = [
    'Bundle',
    'BundleError',
    'folder',
    'is_bundle',
    'kind_in',
    'paths',
    'paths_in',
    'read',
    'read_json',
    'write',
]
