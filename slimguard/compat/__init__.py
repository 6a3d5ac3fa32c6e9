"""Finds TensorFlow and tf-slim; puts back the names that tf-slim needs and TensorFlow dropped.

tf-slim uses private names in ``tensorflow.python``, which TensorFlow 2.13 and later have moved.
`revive` puts these names back where the installed tf-slim looks for them, if they are missing
there, and changes nothing else. ``import slimguard`` makes this happen as soon as TensorFlow is
imported.

Example::

    import slimguard                  # does not import TensorFlow
    import tf_slim as slim            # works on TensorFlow 1.15 and on the newest
    print(slimguard.compat.report())  # versions, repairs and what is missing, for a bug report

The files:

    repairs.py      revive(): puts back what tf-slim needs; import_slim(): imports TF-Slim
    inventory.py    report(): what is installed, put back and missing
    tf_private.py   every private name of TensorFlow that slimguard takes, and why
    tf_callers.py   reads variables from the frames of TensorFlow's functions

`tf_private` and `tf_callers` import TensorFlow; the others import it only inside functions.
"""

from slimguard.compat.inventory import Report, report
from slimguard.compat.repairs import (
    Missing,
    Repair,
    import_slim,
    marks_of,
    on_tensorflow_import,
    require_tensorflow,
    revive,
)

__all__ = [
    'Missing',
    'Repair',
    'Report',
    'import_slim',
    'marks_of',
    'on_tensorflow_import',
    'report',
    'require_tensorflow',
    'revive',
]
