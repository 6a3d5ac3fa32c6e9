"""A stand-in for the v1 layers of Keras 2, where TensorFlow's own loader would not find them."""

import importlib
import types
from typing import Any, Iterable, Tuple

from slimguard.compat.modules import tensorflow_version


class KerasLayers(types.ModuleType):
    """A module of Keras that is imported when one of its names is first used.

    It replaces a lazy loader of TensorFlow's that points to a missing module.
    """

    def __init__(self, name: str, homes: Tuple[str, ...]) -> None:
        super().__init__(name)
        self._homes = homes

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):  # inspect, doctest and warnings ask every module for these
            raise AttributeError(name)
        return getattr(_import_layers(self._homes), name)


def _import_layers(homes: Iterable[str]) -> types.ModuleType:
    cause = None
    for home in homes:
        try:
            return importlib.import_module(home)
        except ImportError as error:
            cause = cause or error
    raise ImportError(
        'tf-slim needs the v1 layers of Keras 2, for slim.batch_norm above all, and TensorFlow {} '
        'does not have them: {}'.format(tensorflow_version(), layers_remedy())
    ) from cause


def layers_remedy() -> str:
    """The command that installs the v1 layers: TensorFlow's own Keras until 2.15, then tf-keras."""
    major, minor = tensorflow_version().split('.')[:2]
    package = 'keras' if int(minor) < 16 else 'tf-keras'
    return 'pip install "{}=={}.{}.*"'.format(package, major, minor)
