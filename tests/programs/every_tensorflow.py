"""Builds and trains networks of tf_slim.nets on one TensorFlow minor version after another.

    python tests/programs/every_tensorflow.py                   # 2.12 and every minor since
    python tests/programs/every_tensorflow.py 2.13 2.16         # just those

Not part of CI: each version is installed in a fresh environment (a gigabyte or two, removed again),
with a Python that it supports. Pythons are looked for under pyenv's root and on PATH.
"""

import glob
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
# The newest Python that each minor version is installed with here. From 2.16 on, the layers of
# slim's batch norm are in the tf-keras of the same version.
PYTHONS = {
    '2.12': '3.11',
    '2.13': '3.11',
    '2.14': '3.11',
    '2.15': '3.11',
    '2.16': '3.12',
    '2.17': '3.12',
    '2.18': '3.12',
    '2.19': '3.12',
    '2.20': '3.13',
    '2.21': '3.13',
}
TESTS = ['tests/compat/test_nets.py', '-m', 'not matrix']


def find_python(version):
    """The path of a Python of that version, or None."""
    root = os.environ.get('PYENV_ROOT', os.path.expanduser('~/.pyenv'))
    found = glob.glob(os.path.join(root, 'versions', version + '.*', 'bin', 'python' + version))
    return found[0] if found else shutil.which('python' + version)


def check(tensorflow, folder):
    """Installs that TensorFlow in `folder` and runs TESTS. Returns what to print."""
    python = find_python(PYTHONS[tensorflow])
    if python is None:
        return 'skipped: no Python %s here' % PYTHONS[tensorflow]
    subprocess.run([python, '-m', 'venv', folder], check=True)
    python = os.path.join(folder, 'bin', 'python')
    pip = [python, '-m', 'pip', 'install', '-q', '--disable-pip-version-check']
    release = '==%s.*' % tensorflow
    subprocess.run(pip + ['tensorflow-cpu' + release, 'tf-slim', 'pytest', 'numpy<2.2'], check=True)
    if float(tensorflow) >= 2.16:
        # It asks for "tensorflow" by name; tensorflow-cpu is half the download.
        subprocess.run(pip + ['--no-deps', 'tf-keras' + release], check=True)
    done = subprocess.run(
        [python, '-m', 'pytest', '-q', '-p', 'no:cacheprovider'] + TESTS,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        print(done.stdout)
    return done.stdout.strip().splitlines()[-1]


def main():
    wanted = sys.argv[1:] or list(PYTHONS)
    unknown = [version for version in wanted if version not in PYTHONS]
    if unknown:
        sys.exit('unknown: %s; expected some of %s' % (', '.join(unknown), ', '.join(PYTHONS)))
    for version in wanted:
        started = time.time()
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = check(version, folder)
            except subprocess.CalledProcessError as error:
                result = 'failed: %s' % error
        print('TensorFlow %s: %s (%d s)' % (version, result, time.time() - started), flush=True)


if __name__ == '__main__':
    main()
