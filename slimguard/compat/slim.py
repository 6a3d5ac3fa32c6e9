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
      ImportError: if there is neither, or if tf-slim cannot work with this TensorFlow; the message
        says what to install.
    """
    revive()
    missing = missing_slim()
    if missing is not None:
        raise ImportError('{}: {}. {}'.format(*missing))
    name = _slim_name()
    assert name is not None  # else it would be missing
    return importlib.import_module(name)


def _slim_name() -> Optional[str]:
    """The module that is TF-Slim here."""
    if find_spec('tf_slim'):
        return 'tf_slim'
    return 'tensorflow.contrib.slim' if has_contrib() else None


def missing_slim() -> Optional[Missing]:
    """Why there is no TF-Slim that works with this TensorFlow; None if there is one."""
    slim = _slim_name()
    if slim is None:
        return NO_SLIM
    if slim == 'tf_slim' and _is_shell_of_contrib() and not has_contrib():
        why = 'tf-slim 1.0 is made of tf.contrib, which only TensorFlow 1 has'
        return Missing('tf-slim', why, 'pip install "tf-slim>=1.1"')
    return None


def _is_shell_of_contrib() -> bool:
    """Whether ``tf_slim`` is version 1.0. Its imports tell: a copy may have no version."""
    with open(find_spec('tf_slim').origin, encoding='utf-8') as file:
        return 'from tensorflow.contrib' in file.read()


def marks_of(learning: types.ModuleType) -> Tuple[Any, Any]:
    """The defaults of `slim.learning` that mean "not given": for the global step, and for others.

    `_USE_GLOBAL_STEP` and `_USE_DEFAULT` of tf_slim 1.1.0 and of tf.contrib.slim in 1.15. They have
    no public names, and a call of slim's functions with all arguments needs them.
    """
    return learning._USE_GLOBAL_STEP, learning._USE_DEFAULT
