"""The report on what is installed: versions, what was put back, and what is missing."""

import importlib
import platform
import sys
from typing import Iterable, List, NamedTuple, Optional, Tuple

from slimguard.compat.keras_layers import layers_remedy
from slimguard.compat.modules import exists, find_spec, import_or_none, tensorflow_version
from slimguard.compat.repairs import Repair, put_back_rows, revive, source_of
from slimguard.compat.slim import Missing, missing_slim
from slimguard.compat.slim_sources import names_used, slim_folders, sources


class Report(NamedTuple):
    """What was found; ``str()`` gives a plain text table for a bug report."""

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
    """Says which versions were found, what was put back and what is missing.

    Revives tf-slim first. Reads tf-slim's sources, which takes a second.
    """
    try:
        repairs = revive()
    except ImportError as error:
        lacking = Missing('tensorflow', str(error), 'pip install "slimguard[tf]"')
        return Report(_versions(), (), (lacking,))
    slim = missing_slim()
    missing = [slim] if slim else _missing_names() + _missing_layers()
    return Report(_versions(), repairs, tuple(missing))


def _missing_layers() -> List[Missing]:
    """The repairs that wait for a Keras to be installed."""
    names = [row.full_name for row in put_back_rows() if source_of(row) is None]
    why = 'slim.batch_norm is made of the v1 layers of Keras 2, which are not installed'
    return [Missing(name, why, layers_remedy()) for name in names]


def _missing_names() -> List[Missing]:
    """Names that tf-slim uses and nobody has, as in a TensorFlow newer than the table."""
    paths = [path for path in sources(slim_folders()) if not path.endswith('_test.py')]
    names = set().union(*(names_used(path) for path in paths))
    names.difference_update(row.full_name for row in put_back_rows())
    why = 'tf-slim uses it and TensorFlow {} lacks it'.format(tensorflow_version())
    remedy = 'report it to slimguard, with this table'
    return [Missing(name, why, remedy) for name in sorted(names) if not exists(name)]


def _versions() -> Tuple[Tuple[str, str], ...]:
    # The distribution of TensorFlow goes by many names: tensorflow-cpu, tf-nightly, a vendor's.
    tensorflow = import_or_none('tensorflow')
    versions = [
        ('Python', platform.python_version()),
        ('TensorFlow', tensorflow.__version__ if tensorflow else 'not installed'),
        ('tf-slim', _slim_version()),
    ]
    others = ('tf-keras', 'keras', 'numpy', 'protobuf', 'slimguard')
    versions += [(name, _distribution_version(name) or 'not installed') for name in others]
    return tuple(versions)


def _slim_version() -> str:
    version = _distribution_version('tf-slim')
    if version is None and find_spec('tf_slim'):
        return 'not installed by pip'
    if version is None and import_or_none('tensorflow.contrib.slim'):
        return 'tf.contrib.slim'
    return version or 'not installed'


def _distribution_version(name: str) -> Optional[str]:
    if sys.version_info >= (3, 8):
        from importlib import metadata

        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None
    pkg_resources = importlib.import_module('pkg_resources')  # Python 3.7 has nothing else

    try:
        return pkg_resources.get_distribution(name).version
    except pkg_resources.DistributionNotFound:
        return None


def _columns(pairs: Iterable[Tuple[str, str]]) -> List[str]:
    """Two aligned columns of text."""
    pairs = list(pairs)
    width = max((len(left) for left, _ in pairs), default=0)
    return ['  {:{}}  {}'.format(left, width, right) for left, right in pairs]
