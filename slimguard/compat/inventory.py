"""The report on the installation: versions, names that were put back, and what is missing."""

import importlib
import platform
from typing import Any, Iterable, List, NamedTuple, Tuple

from slimguard.compat.fitness import misfits, reinstall, version_of
from slimguard.compat.keras_layers import layers_remedy
from slimguard.compat.modules import (
    INSTALL_TENSORFLOW,
    exists,
    find_spec,
    import_or_none,
    tensorflow_version,
)
from slimguard.compat.repairs import Repair, put_back_rows, require_tensorflow, revive, source_of
from slimguard.compat.slim import NO_SLIM, Missing, missing_slim
from slimguard.compat.slim_sources import names_used, slim_folders, sources
from slimguard.compat.slim_watcher import stop_watching


class Report(NamedTuple):
    """The report; ``str()`` gives a plain text table for a bug report."""

    versions: Tuple[Tuple[str, str], ...]
    repairs: Tuple[Repair, ...]
    missing: Tuple[Missing, ...]

    def __str__(self) -> str:
        lines = _columns(self.versions)
        lines += ['', 'put back: {}'.format(len(self.repairs) or 'nothing')]
        lines += _columns(self.repairs)
        lines += ['', 'missing: {}'.format(len(self.missing) or 'nothing')]
        for name, why, remedy in self.missing:
            lines += ['  ' + name, '    why:   ' + why, '    do:    ' + remedy]
        return '\n'.join(lines)


def report() -> Report:
    """Reports which versions there are, what was put back, what is missing, and what does not fit.

    Revives tf-slim first. Reads tf-slim's sources, which takes a second.
    """
    missing = [*_missing_packages(), *misfits()]
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
        # If a package does not fit, it is the reason.
        broken = Missing('tensorflow', why, missing[-1].remedy if misfits() else reinstall())
        missing = [broken, *_missing_slim_itself(), *missing]
        return Report(_versions(None), (), tuple(missing))
    repairs = revive()
    slim = missing_slim()
    missing += [slim] if slim else _missing_names() + _missing_layers()
    return Report(_versions(tensorflow), repairs, tuple(missing))


def _missing_slim_itself() -> List[Missing]:
    """The missing tf-slim, if there is none, where no TensorFlow can be asked for its own."""
    stop_watching()  # the watcher would import TensorFlow as soon as tf-slim is looked for
    return [] if find_spec('tf_slim') else [NO_SLIM]


def _missing_packages() -> List[Missing]:
    """The packages that slimguard needs and lacks, as after ``pip install --no-deps``."""
    why = 'slimguard report makes its page with it'
    return [] if find_spec('jinja2') else [Missing('jinja2', why, 'pip install "jinja2>=3.0"')]


def _missing_layers() -> List[Missing]:
    """The repairs that wait for a Keras to be installed."""
    names = [row.full_name for row in put_back_rows() if source_of(row) is None]
    why = 'slim.batch_norm is made of the v1 layers of Keras 2, which are not installed'
    return [Missing(name, why, layers_remedy()) for name in names]


def _missing_names() -> List[Missing]:
    """Names that tf-slim uses and TensorFlow lacks, as if it is newer than the table."""
    paths = [path for path in sources(slim_folders()) if not path.endswith('_test.py')]
    names = set().union(*(names_used(path) for path in paths))
    names.difference_update(row.full_name for row in put_back_rows())
    why = 'tf-slim uses it and TensorFlow {} lacks it'.format(tensorflow_version())
    remedy = 'report it to slimguard, with this table'
    return [Missing(name, why, remedy) for name in sorted(names) if not exists(name)]


def _versions(tensorflow: Any) -> Tuple[Tuple[str, str], ...]:
    # TensorFlow's package goes by many names: tensorflow-cpu, tf-nightly, a vendor's.
    versions = [
        ('Python', platform.python_version()),
        ('TensorFlow', tensorflow.__version__ if tensorflow else _version_unread()),
        ('tf-slim', _slim_version(tensorflow)),
    ]
    others = ('tf-keras', 'keras', 'numpy', 'protobuf', 'slimguard')
    versions += [(name, version_of(name) or 'not installed') for name in others]
    return tuple(versions)


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
