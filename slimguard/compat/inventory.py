"""The report on the installation: versions, names that were put back, and what is missing."""

import importlib
import os
import platform
import sys
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple

from slimguard.compat.repairs import (
    INSTALL_TENSORFLOW,
    NO_SLIM,
    Missing,
    Repair,
    find_spec,
    import_or_none,
    layers_remedy,
    missing_slim,
    put_back_rows,
    require_tensorflow,
    revive,
    source_of,
)

# TensorFlow's package has many names; the first that is installed counts.
_TENSORFLOWS = 'tensorflow tensorflow-cpu tensorflow-gpu tf-nightly intel-tensorflow'.split()
# With 1, TensorFlow uses Keras 2, which has the RNN cells of TensorFlow 1.
_LEGACY = 'TF_USE_LEGACY_KERAS'

_PUT_BACK = 'names that tf-slim needs and this TensorFlow lacks, put back'


class Report(NamedTuple):
    """The report; ``str()`` gives a plain text table for a bug report."""

    versions: Tuple[Tuple[str, str], ...]
    repairs: Tuple[Repair, ...]
    missing: Tuple[Missing, ...]

    def __str__(self) -> str:
        lines = _columns(self.versions)
        lines += ['', '{}: {}'.format(_PUT_BACK, len(self.repairs) or 'none')]
        lines += _columns(self.repairs)
        lines += ['', 'missing: {}'.format(len(self.missing) or 'nothing')]
        for name, why, remedy in self.missing:
            lines += ['  ' + name, '    why:   ' + why, '    do:    ' + remedy]
        return '\n'.join(lines)


def report() -> Report:
    """Reports which versions there are, what was put back, and what is missing.

    Calls `revive` first.
    """
    missing = _missing_packages()
    try:
        require_tensorflow()
    except ImportError as error:
        lacking = Missing('tensorflow', str(error), INSTALL_TENSORFLOW)
        missing = [lacking, *_missing_slim_itself(), *missing]
        return Report(_versions(None), (), tuple(missing))
    try:
        tensorflow = importlib.import_module('tensorflow')
    except Exception as error:  # numpy or protobuf may raise anything
        why = 'it is installed and cannot be imported (%s: %s)' % (type(error).__name__, error)
        broken = Missing('tensorflow', why, _reinstall())
        missing = [broken, *_missing_slim_itself(), *missing]
        return Report(_versions(None), (), tuple(missing))
    repairs = revive()
    slim = missing_slim()
    missing += [slim] if slim else _missing_layers()
    return Report(_versions(tensorflow), repairs, tuple(missing))


def _missing_slim_itself() -> List[Missing]:
    """tf-slim, if it is missing; used where TensorFlow cannot be imported."""
    return [] if find_spec('tf_slim') else [NO_SLIM]


def _missing_packages() -> List[Missing]:
    """The packages that slimguard needs and lacks, as after ``pip install --no-deps``."""
    why = 'slimguard report makes its page with it'
    return [] if find_spec('jinja2') else [Missing('jinja2', why, 'pip install "jinja2>=3.0"')]


def _missing_layers() -> List[Missing]:
    """The names put back that work only once Keras 2 is installed."""
    names = [row.full_name for row in put_back_rows if source_of(row) is None]
    why = 'slim.batch_norm is made of the v1 layers of Keras 2, which are not installed'
    return [Missing(name, why, layers_remedy()) for name in names]


def version_of(name: str) -> Optional[str]:
    """The version of a package that pip has installed; None if it is not installed."""
    try:
        if sys.version_info >= (3, 8):
            from importlib import metadata

            return metadata.version(name)
        return importlib.import_module('pkg_resources').get_distribution(name).version
    except Exception:  # there is no such package; or, on Python 3.7, there is no setuptools
        return None


def _reinstall() -> str:
    """The command that reinstalls the present TensorFlow with its dependencies."""
    name = next((each for each in _TENSORFLOWS if version_of(each) is not None), None)
    if name is None:
        return INSTALL_TENSORFLOW
    version = str(version_of(name))
    # TensorFlow 1.15 needs this, but does not declare it: see setup.cfg.
    besides = ' "protobuf<3.21"' if version.startswith('1.') else ''
    return 'pip install --force-reinstall "%s==%s"%s' % (name, version, besides)


def _versions(tensorflow: Any) -> Tuple[Tuple[str, str], ...]:
    # Ask the module for its version: its package may be tensorflow-cpu, tf-nightly or a vendor's.
    versions = [
        ('Python', platform.python_version()),
        ('TensorFlow', tensorflow.__version__ if tensorflow else _version_unread()),
        ('tf-slim', _slim_version(tensorflow)),
    ]
    others = ('tf-keras', 'keras', 'numpy', 'protobuf', 'Jinja2', 'matplotlib')
    versions += [(name, version_of(name) or 'not installed') for name in others]
    if tensorflow and tuple(map(int, tensorflow.__version__.split('.')[:2])) >= (2, 16):
        legacy = os.environ.get(_LEGACY, 'not set; tf.nn.rnn_cell needs tf-keras, and 1 here')
        versions.append((_LEGACY, legacy))
    return (*versions, ('slimguard', _own_version()))


def _own_version() -> str:
    """The version of slimguard, and its folder unless pip has installed it there."""
    ours = sys.modules['slimguard']
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    is_installed = os.path.basename(folder) in ('site-packages', 'dist-packages')
    version = getattr(ours, '__version__', 'of unknown version')
    return version if is_installed else '%s, from %s' % (version, folder)


def _version_unread() -> str:
    return 'cannot be imported' if find_spec('tensorflow') else 'not installed'


def _slim_version(tensorflow: Any) -> str:
    version = version_of('tf-slim')
    if version is None and find_spec('tf_slim'):
        return 'not installed by pip'
    if version is None and tensorflow and import_or_none('tensorflow.contrib.slim'):
        return 'tf.contrib.slim'
    return version or 'not installed'


def _columns(pairs: Iterable[Tuple[str, str]]) -> List[str]:
    """Two aligned columns of text."""
    pairs = list(pairs)
    width = max((len(left) for left, _ in pairs), default=0)
    return ['  {:{}}  {}'.format(left, width, right) for left, right in pairs]
