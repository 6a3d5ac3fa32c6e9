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

The files:

    files.py          the names of the files, and opening them safely
    incident_json.py  incident.json
    arrays.py         drawn.npz
    index.py          state.index, read without TensorFlow
    state.py          the state: a checkpoint, read variable by variable
    reading.py        a whole bundle, read
    writing.py        a whole bundle, written
    folders.py        the bundles of a log directory: found, put in order, made, removed
"""

from slimguard.diagnosis.bundle.files import BundleError
from slimguard.diagnosis.bundle.folders import folder, is_bundle, own_paths, paths, remove_abandoned
from slimguard.diagnosis.bundle.incident_json import number
from slimguard.diagnosis.bundle.reading import Bundle, read, read_json
from slimguard.diagnosis.bundle.writing import write

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
