"""Installed packages, such as numpy or protobuf, whose versions TensorFlow does not work with.

Reads pip's metadata of the packages, and imports none of them: with a protobuf that does not fit,
TensorFlow itself cannot be imported.
"""

import importlib
import sys
from typing import Any, Iterator, List, Optional

from slimguard.compat.modules import INSTALL_TENSORFLOW
from slimguard.compat.slim import Missing

# TensorFlow's package goes by many names; the first that is installed counts.
_TENSORFLOWS = 'tensorflow tensorflow-cpu tensorflow-gpu tf-nightly intel-tensorflow'.split()
# Requirements of TensorFlow 1.15 that its metadata do not have: see setup.cfg.
_UNTOLD = {'1': ('protobuf<3.21',)}
_READERS = (
    'packaging.requirements',
    'pip._vendor.packaging.requirements',
    'pkg_resources.extern.packaging.requirements',
)


def misfits() -> List[Missing]:
    """Packages whose version TensorFlow does not work with, each with the command that helps."""
    name = next((each for each in _TENSORFLOWS if version_of(each) is not None), None)
    if name is None:
        return []
    version = version_of(name)
    assert version is not None
    found = []
    for required in _requirements(name, version):
        installed = version_of(required.name)
        if installed is None or required.specifier.contains(installed, prereleases=True):
            continue
        asked = ','.join(sorted(map(str, required.specifier)))
        why = '%s %s is installed, and TensorFlow %s needs %s%s'
        why %= required.name, installed, version, required.name, asked
        remedy = 'pip install "%s%s"' % (required.name, asked)
        found.append(Missing('a %s that fits' % required.name, why, remedy))
    return found


def reinstall() -> str:
    """The command that installs the present TensorFlow anew."""
    name = next((each for each in _TENSORFLOWS if version_of(each) is not None), None)
    if name is None:
        return INSTALL_TENSORFLOW
    return 'pip install --force-reinstall "%s==%s"' % (name, version_of(name))


def version_of(name: str) -> Optional[str]:
    """The version of a package that pip has installed; None without it."""
    if sys.version_info >= (3, 8):
        from importlib import metadata

        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None
    found = _distribution_of_python37(name)
    return None if found is None else found.version


def _requirements(name: str, version: str) -> Iterator[Any]:
    """A TensorFlow's requirements on this Python, as objects with `name` and `specifier`."""
    read = _reader()
    if read is None:  # neither packaging nor pip is there to read them
        return
    for text in [*_asked_by(name), *_UNTOLD.get(version.partition('.')[0], ())]:
        required = read(text)
        if required.marker is None or required.marker.evaluate({'extra': ''}):
            yield required


def _asked_by(name: str) -> List[str]:
    if sys.version_info >= (3, 8):
        from importlib import metadata

        return metadata.requires(name) or []
    return [str(each) for each in _distribution_of_python37(name).requires()]


def _distribution_of_python37(name: str) -> Any:
    try:
        pkg_resources = importlib.import_module('pkg_resources')  # there is nothing else
    except ImportError:  # a venv without setuptools
        return None
    try:
        return pkg_resources.get_distribution(name)
    except pkg_resources.DistributionNotFound:
        return None


def _reader() -> Any:
    """A class that reads a requirement such as ``numpy<2,>=1.26``; None if there is none."""
    for name in _READERS:
        try:
            return importlib.import_module(name).Requirement
        except ImportError:
            continue
    return None
