"""The bundle: a bad step in a folder, to be opened elsewhere, weeks later, without the user's code.

    logdir/slimguard/incident-<step>/
      incident.json       what happened, the diagnosis, the ranges along the step, and names
      drawn.npz           what the step drew
      step.pb             the step as a GraphDef
      state.index, ...    a checkpoint of the variables before the step, which any Saver restores

:func:`write` makes one, :func:`read` opens one, :func:`paths` lists those of a log directory. All
go wherever `tf.io.gfile` does. Nothing is pickled. :func:`read` believes nothing: whatever is not
as it should be is a `BundleError`, and sizes are checked before memory is taken. Still, a graph is
code: it can read and write files when it is run. Replay only what you trust.
"""

from slimguard.diagnosis.bundle_files import BundleError
from slimguard.diagnosis.bundle_folders import folder, is_bundle, own_paths, paths, remove_abandoned
from slimguard.diagnosis.bundle_reading import Bundle, number, read, read_json
from slimguard.diagnosis.bundle_writing import write

__all__ = [
    'Bundle',
    'BundleError',
    'folder',
    'is_bundle',
    'number',
    'own_paths',
    'paths',
    'read',
    'read_json',
    'remove_abandoned',
    'write',
]
