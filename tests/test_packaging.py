"""What pip installs, and when."""

import configparser
import pathlib
import re
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

import slimguard

try:
    from importlib import metadata
except ImportError:  # Python 3.7, where pytest brings the backport along
    import importlib_metadata as metadata

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope='module')
def distribution():
    try:
        return metadata.distribution('slimguard')
    except metadata.PackageNotFoundError:
        pytest.skip('slimguard is imported from a checkout that is not installed')


def requirements(distribution, extra, python):
    """Returns what pip installs for the extra on that Python, as {name: specifier}."""
    found = map(Requirement, distribution.requires)
    environment = {'extra': extra, 'python_version': python}
    return {
        requirement.name: str(requirement.specifier)
        for requirement in found
        if requirement.marker is None or requirement.marker.evaluate(environment)
    }


def test_the_version_is_the_newest_in_the_changelog(distribution):
    changelog = (ROOT / 'CHANGELOG.md').read_text()
    newest = re.search(r'^## \[(.+?)\]', changelog, re.MULTILINE).group(1)
    assert slimguard.__version__ == newest == distribution.version


@pytest.mark.parametrize('python', ['3.7', '3.13'])
def test_tensorflow_is_no_hard_requirement(distribution, python):
    assert requirements(distribution, '', python) == {'tf-slim': '>=1.0', 'jinja2': '>=3.0'}


def test_a_wheel_holds_all_that_is_no_python_too():
    config = configparser.ConfigParser()
    config.read(str(ROOT / 'setup.cfg'))
    shipped = set()
    for package, patterns in config['options.package_data'].items():
        folder = ROOT.joinpath(*package.split('.'))
        shipped.update(path for pattern in patterns.split() for path in folder.glob(pattern))
    files = {path for path in (ROOT / 'slimguard').rglob('*') if path.is_file()}
    data = {path for path in files if path.suffix not in ('.py', '.pyc')}
    assert ROOT / 'slimguard' / 'report' / 'templates' / 'report.css' in data
    assert data == shipped


@pytest.mark.parametrize('minor', range(7, 14))
def test_the_tf_extra_fits_the_python(distribution, minor):
    tf = requirements(distribution, 'tf', '3.%d' % minor)
    if minor == 7:
        assert tf['tensorflow'] == '==1.15.*'
        assert (tf['protobuf'], tf['numpy']) == ('<3.21', '<1.19')
    else:
        assert tf['tensorflow'] == '>=2.12'
        # Without it slim.batch_norm has nothing to stand on from TensorFlow 2.16 on, which needs
        # Python 3.9.
        assert ('tf-keras' in tf) == (minor >= 9)


def test_it_is_found_where_the_working_directory_is_a_logdir(distribution, tmp_path):
    # The record's folder has the package's name, and the working directory is asked first.
    (tmp_path / 'slimguard').mkdir()
    where = 'import importlib.util; print(importlib.util.find_spec("slimguard").origin)'
    found = subprocess.run(
        [sys.executable, '-c', where], cwd=tmp_path, check=True, stdout=subprocess.PIPE
    )
    assert found.stdout.decode().strip() == slimguard.__file__
