"""Looks up modules and names by their full names, and imports no more than necessary."""

import importlib
import importlib.util
import os
import sys
import types
from typing import Any, Optional

# What the extra "tf" installs, for users without a checkout of slimguard.
INSTALL_TENSORFLOW = 'pip install "tensorflow>=2.12"'
if sys.version_info >= (3, 9):
    INSTALL_TENSORFLOW += ' tf-keras'
elif sys.version_info < (3, 8):
    INSTALL_TENSORFLOW = 'pip install "tensorflow==1.15.*" "protobuf<3.21" "numpy<1.19"'


def find_spec(package: str) -> Any:
    """The spec of a top-level package; None if there is none, or if its import is forbidden."""
    try:
        return importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None


def is_on_disk(name: str) -> bool:
    """Whether a module's file is there; unlike ``find_spec``, imports none of its parents."""
    package, _, rest = name.partition('.')
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    paths = [os.path.join(place, *rest.split('.')) for place in places or ()]
    return any(os.path.isdir(path) or os.path.isfile(path + '.py') for path in paths)


def import_or_none(name: str) -> Optional[types.ModuleType]:
    """Imports a module; None if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def public(home: str) -> Any:
    """The value of a public name of TensorFlow's, such as ``tf.compat.v1.cond``; None if gone."""
    value = importlib.import_module('tensorflow')
    for name in home.split('.')[1:]:
        value = getattr(value, name, None)
    return value


def tensorflow_version() -> str:
    """The version of TensorFlow; imports TensorFlow."""
    return importlib.import_module('tensorflow').__version__


def has_contrib() -> bool:
    """Whether this TensorFlow has ``tf.contrib``."""
    return tensorflow_version().startswith('1.')
