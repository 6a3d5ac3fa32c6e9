"""Puts back the names that tf-slim uses and the installed TensorFlow lacks."""

import importlib
import os
import sys
import types
from typing import Any, List, NamedTuple, Optional, Tuple

from slimguard.compat.keras_layers import KerasLayers
from slimguard.compat.modules import (
    INSTALL_TENSORFLOW,
    find_spec,
    import_or_none,
    is_on_disk,
    public,
)
from slimguard.compat.table import LAYERS, TABLE, Row

_put_back_rows: List[Row] = []


class Repair(NamedTuple):
    """A name that was put back, and the name that it stands for now."""

    name: str
    source: str


def require_tensorflow() -> None:
    """Raises an ImportError that says what to install when there is no TensorFlow.

    Looks, but imports nothing.
    """
    if sys.modules.get('tensorflow') is None and find_spec('tensorflow') is None:
        raise ImportError(
            'no TensorFlow was found; slimguard uses the TensorFlow that you have. '
            '%s installs one; any other build of TensorFlow '
            "(tensorflow-cpu, tensorflow-gpu, a vendor's own) works as well." % INSTALL_TENSORFLOW
        )


def revive() -> Tuple[Repair, ...]:
    """Puts back the names that tf-slim uses and the installed TensorFlow lacks.

    Imports TensorFlow, but neither tf-slim nor Keras. Safe to call again: existing names, be they
    TensorFlow's own or put back before, are left alone.

    Returns:
      All repairs made in this process so far.

    Raises:
      ImportError: if TensorFlow is not installed.
    """
    require_tensorflow()
    stop_watching()
    for row in missing_rows():
        if _put_back(row):
            _put_back_rows.append(row)
    sources = ((row.full_name, source_of(row)) for row in _put_back_rows)
    return tuple(Repair(name, source) for name, source in sources if source)


def on_slim_import() -> None:
    """Revives tf-slim now if it is imported already, else just before its first import.

    Imports nothing itself, so that ``import slimguard`` stays quick.
    """
    if 'tf_slim' in sys.modules:
        revive()
    elif not any(isinstance(finder, SlimWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, SlimWatcher())


class SlimWatcher:
    """A finder for ``sys.meta_path`` that finds nothing, but notices when tf-slim is imported.

    The finders after it then import tf-slim as usual.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == 'tf_slim':
            revive()


def stop_watching() -> None:
    """Removes the watcher."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, SlimWatcher)]


def put_back_rows() -> Tuple[Row, ...]:
    """The rows of the table that were put back in this process so far."""
    return tuple(_put_back_rows)


def missing_rows() -> List[Row]:
    """The rows that TensorFlow lacks."""
    return [row for row in TABLE if _is_missing(row)]


def _is_missing(row: Row) -> bool:
    module = import_or_none(row.module)
    if module is None:
        return False
    if isinstance(row.home, str):
        return not hasattr(module, row.name)
    return _leads_nowhere(vars(module).get(_loader_name(row, module)))


def _put_back(row: Row) -> bool:
    """Puts a name back; returns False if TensorFlow has nothing to put there."""
    module = importlib.import_module(row.module)
    if isinstance(row.home, str):
        value = public(row.home)
        if value is None:
            return False
        setattr(module, row.name, value)
    else:
        layers = KerasLayers(row.full_name, row.home)
        setattr(module, _loader_name(row, module), layers)
    return True


def source_of(row: Row) -> Optional[str]:
    """Where the name comes from; None if it has to be installed first."""
    if isinstance(row.home, str):
        return row.home
    return next((home for home in row.home if is_on_disk(home)), None)


def _loader_name(row: Row, module: types.ModuleType) -> str:
    """The global that holds TensorFlow's lazy loader for a name.

    The loader has the same name. Some modules, such as ``tensorflow.python.layers.normalization``,
    have one loader for all their names, which has the name of the module.
    """
    return row.name if row.name in vars(module) else row.module.rpartition('.')[2]


def _leads_nowhere(value: Any) -> bool:
    """Whether this is a lazy loader whose module is not installed; does not make it load."""
    # Internal, without a public name: only its type tells a lazy loader from what it loads.
    lazy_loader = importlib.import_module('tensorflow.python.util.lazy_loader')
    if not isinstance(value, lazy_loader.LazyLoader):
        return False
    # The loader that chooses between the packages of Keras has no name until it has chosen. Of
    # these packages only Keras 2 has the layers.
    target = vars(value).get('__name__')
    if target is None:
        legacy = os.environ.get('TF_USE_LEGACY_KERAS') in ('true', 'True', '1')
        target = LAYERS[0 if legacy else 1]
    return not is_on_disk(target)
