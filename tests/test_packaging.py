"""The requirements for each Python, and the wheel and sdist that pip installs."""

import configparser
import email
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
from packaging.requirements import Requirement

import slimguard
from slimguard.compat.repairs import INSTALL_TENSORFLOW

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
        # From TensorFlow 2.16 on, which needs Python 3.9, slim.batch_norm runs on tf-keras.
        assert ('tf-keras' in tf) == (minor >= 9)


def test_it_is_found_where_the_working_directory_is_a_logdir(distribution, tmp_path):
    # A logdir has a folder called slimguard, and Python looks into the working directory first.
    (tmp_path / 'slimguard').mkdir()
    where = 'import importlib.util; print(importlib.util.find_spec("slimguard").origin)'
    found = subprocess.run(
        [sys.executable, '-c', where], cwd=tmp_path, check=True, stdout=subprocess.PIPE
    )
    assert found.stdout.decode().strip() == slimguard.__file__


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    """The folder with the wheel and the sdist, built from a copy: setuptools leaves files."""
    folder = tmp_path_factory.mktemp('built')
    left_out = shutil.ignore_patterns('.*', '__pycache__', '*.egg-info', 'build', 'dist', 'site')
    shutil.copytree(str(ROOT), str(folder / 'sources'), ignore=left_out)
    for command in ('sdist', 'bdist_wheel'):
        subprocess.run(
            [sys.executable, 'setup.py', '-q', command, '-d', str(folder)],
            cwd=str(folder / 'sources'),
            check=True,
            capture_output=True,
        )
    return folder


@pytest.fixture(scope='module')
def wheel(built):
    (path,) = built.glob('*.whl')
    return path


@pytest.fixture(scope='module')
def told(wheel):
    """The metadata of the wheel."""
    with zipfile.ZipFile(str(wheel)) as file:
        (name,) = [each for each in file.namelist() if each.endswith('dist-info/METADATA')]
        return email.message_from_bytes(file.read(name))


@pytest.fixture(scope='module')
def venv(wheel, tmp_path_factory):
    """A fresh Python with nothing installed but the wheel."""
    folder = tmp_path_factory.mktemp('venv')
    subprocess.run([sys.executable, '-m', 'venv', str(folder)], check=True)
    pip = [str(folder / 'bin' / 'python'), '-m', 'pip', '--disable-pip-version-check']
    install = ['install', '-q', '--no-deps', '--no-index', str(wheel)]
    subprocess.run(pip + install, check=True, stderr=subprocess.PIPE)
    return folder


def run_installed(*command, **kwargs):
    """Runs a command of the venv, which sees no slimguard but its own."""
    variables = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=variables, **kwargs
    )


class TestWheelAndSdist:
    """The wheel and the sdist, installed in an empty environment. Takes half a minute."""

    pytestmark = pytest.mark.full

    def test_the_wheel_has_the_package_and_no_tests(self, wheel):
        with zipfile.ZipFile(str(wheel)) as file:
            names = set(file.namelist())
        assert {name.partition('/')[0].partition('-')[0] for name in names} == {'slimguard'}
        sources = {path for path in (ROOT / 'slimguard').rglob('*') if path.is_file()}
        there = {str(path.relative_to(ROOT)) for path in sources if path.suffix != '.pyc'}
        assert there <= names
        assert any(name.endswith('LICENSE') for name in names)

    def test_the_sdist_has_what_its_tests_need(self, built):
        (path,) = built.glob('*.tar.gz')
        with tarfile.open(str(path)) as file:
            names = {name.partition('/')[2] for name in file.getnames()}
        wanted = {'README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'LICENSE', 'setup.cfg'}
        for folder in ('slimguard', 'tests', 'examples'):
            files = [path for path in (ROOT / folder).rglob('*.py') if path.is_file()]
            wanted.update(str(path.relative_to(ROOT)) for path in files)
        assert not wanted - names

    def test_the_metadata_say_where_to_look_and_what_each_extra_brings(self, told):
        assert told['Description-Content-Type'].startswith('text/markdown')
        assert told.get_payload().strip() == (ROOT / 'README.md').read_text().strip()
        links = told.get_all('Project-URL')
        assert links and all(re.match(r'[^,]{1,32}, https://[^/, ]+/', link) for link in links)
        assert not [link for link in links if 'pypi' in link or 'simple' in link]
        assert str(ROOT) not in str(told)
        assert 'Typing :: Typed' in told.get_all('Classifier')
        extras = set(told.get_all('Provides-Extra'))
        assert extras >= {'tf', 'examples', 'progress', 'report', 'test'}
        brings = {extra: set() for extra in extras}
        for each in map(Requirement, told.get_all('Requires-Dist')):
            for extra in extras:
                if each.marker and each.marker.evaluate({'extra': extra}):
                    brings[extra].add(each.name)
        assert brings['tf'] >= {
            Requirement(each).name for each in shlex.split(INSTALL_TENSORFLOW)[2:]
        }
        assert 'tqdm' in brings['progress']
        assert 'matplotlib' in brings['report'] and 'ipykernel' in brings['test']

    def test_installed_without_tensorflow_it_answers_and_says_what_to_install(self, venv, tmp_path):
        command = str(venv / 'bin' / 'slimguard')
        version = run_installed(command, '--version')
        assert version.stdout == 'slimguard %s\n' % slimguard.__version__
        doctor = run_installed(command, 'doctor')
        assert doctor.returncode == 1 and 'do:    ' + INSTALL_TENSORFLOW in doctor.stdout
        (tmp_path / 'script.py').write_text('')
        run = run_installed(command, 'run', 'script.py', cwd=str(tmp_path))
        assert run.returncode == 2 and len(run.stderr.splitlines()) == 1

    def test_installed_beside_tensorflow_it_trains(self, venv, tmp_path):
        # The packages of this Python, after those of the venv.
        (site_packages,) = venv.glob('lib/python*/site-packages')
        (site_packages / 'beside.pth').write_text(sysconfig.get_path('purelib') + '\n')
        (tmp_path / 'script.py').write_text(
            'import slimguard, tensorflow as tf\n'
            'tf1 = tf.compat.v1\n'
            'tf1.disable_eager_execution()\n'
            'w = tf1.get_variable("w", initializer=2.0)\n'
            'optimizer = tf1.train.GradientDescentOptimizer(0.1)\n'
            'train_op = slimguard.create_train_op(w * w, optimizer)\n'
            'print(slimguard.__file__)\n'
            'print(slimguard.train(train_op, "logs", number_of_steps=3) < 4)\n'
            'print(slimguard.read_incidents("logs"))\n'
        )
        done = run_installed(venv / 'bin' / 'python', 'script.py', cwd=str(tmp_path))
        assert done.returncode == 0, done.stderr
        path, *said = done.stdout.splitlines()
        assert path.startswith(str(site_packages)) and said == ['True', '[]']
