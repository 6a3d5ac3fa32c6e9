"""Looks up modules and names by their full names, and imports no more than necessary."""

import contextlib
import importlib
import importlib.util
import os
import sys
import types
from typing import Any, ContextManager, Optional

# What the extra "tf" installs, for whom has no checkout of slimguard to install it from.
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


def import_or_create(name: str) -> types.ModuleType:
    """Imports a module of TensorFlow's; makes an empty one if TensorFlow has none."""
    module = import_or_none(name)
    if module is None:
        parent, _, child = name.rpartition('.')
        module = sys.modules[name] = types.ModuleType(name)
        setattr(import_or_create(parent), child, module)
    return module


def exists(name: str) -> bool:
    """Whether a full name is a module or a name in one."""
    parent, _, child = name.rpartition('.')
    module = import_or_none(parent)
    # dir() first: TensorFlow logs a warning when a deprecated module is asked for a name.
    with _silence():
        return child in dir(module) or hasattr(module, child) or import_or_none(name) is not None


def _silence() -> ContextManager[Any]:
    """While it is open, a TensorFlow that can be silenced does not warn of deprecated names."""
    deprecation = import_or_none('tensorflow.python.util.deprecation')
    return getattr(deprecation, 'silence', contextlib.nullcontext)()


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
