"""Finds TF-Slim: ``tf_slim``, or the ``tf.contrib.slim`` of TensorFlow 1.15."""

import importlib
import types
from typing import Any, NamedTuple, Optional, Tuple

from slimguard.compat.modules import find_spec, has_contrib
from slimguard.compat.repairs import revive


class Missing(NamedTuple):
    """Something that cannot work here: its name, the reason, and what to do."""

    name: str
    why: str
    remedy: str


NO_SLIM = Missing('tf-slim', 'it is not installed', 'pip install tf-slim')


def import_slim() -> types.ModuleType:
    """Imports TF-Slim: ``tf_slim`` if it is installed, else TensorFlow 1.15's ``tf.contrib.slim``.

    Raises:
      ImportError: if there is neither; the message says what to install.
    """
    revive()
    name = _slim_name()
    if name is None:
        raise ImportError('{}: {}. {}'.format(*NO_SLIM))
    return importlib.import_module(name)


def _slim_name() -> Optional[str]:
    """The module that is TF-Slim here."""
    if find_spec('tf_slim'):
        return 'tf_slim'
    return 'tensorflow.contrib.slim' if has_contrib() else None


def missing_slim() -> Optional[Missing]:
    """Why there is no TF-Slim; None if there is one."""
    return NO_SLIM if _slim_name() is None else None


def marks_of(learning: types.ModuleType) -> Tuple[Any, Any]:
    """The defaults of `slim.learning` that mean "not given": for the global step, and for others.

    `_USE_GLOBAL_STEP` and `_USE_DEFAULT` of tf_slim 1.1.0 and of tf.contrib.slim in 1.15. They have
    no public names, and a call of slim's functions with all arguments needs them.
    """
    return learning._USE_GLOBAL_STEP, learning._USE_DEFAULT
