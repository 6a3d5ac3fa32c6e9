"""Runs the test suite that tf-slim ships, and says what passes and why the rest does not.

Not a test module: pytest does not collect it. tf-slim's suite takes minutes, and some of its tests
fail for reasons that no repair can reach. From the root of the repository::

    python tests/programs/slim_suite.py          # with the names that slimguard puts back
    python tests/programs/slim_suite.py --plain  # tf-slim and TensorFlow as they are installed
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Dict, List, Tuple
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The causes of failures that remain with the names put back, by a part of the message.
CAUSES = (
    (r"No module named 'nose'", 'the test module imports nose, which is not installed'),
    (r"module 'numpy' has no attribute", 'numpy dropped an alias that the test uses'),
    (
        r'only integers, slices .* are valid indices',
        'tf-slim indexes an array with a list of slices, numpy 1.23 and later want a tuple',
    ),
    (
        r'only 0-dimensional arrays can be converted to Python scalars',
        'the test makes a number of an array of one element, numpy 2.4 and later refuse',
    ),
    (
        r'np\.float32\(.*\) within 7 places',
        'the test subtracts a float32 from a float, which numpy 2 does in float32',
    ),
    (
        r'dropout_1/selectv2',
        'the test pins the name of the op that dropout ends in, TensorFlow 2 uses another',
    ),
    (
        r'\S+ != \S+ within 4 places',
        'the test pins a number drawn at random, which depends on every op in the graph',
    ),
    (
        r'Devices \S+ and \S+ are not equal',
        'the test pins how device scopes merge, TensorFlow 2 merges them differently',
    ),
    (
        r'AssignAddVariableOp.* is not an instance of',
        'the test wants a tf.compat.v1.Variable, resource variables stopped being one',
    ),
)


def run_suite(plain: bool, junit: str) -> None:
    """Runs tf-slim's suite in a Python of its own; the results go to a file in JUnit's format."""
    command = [sys.executable, '-m', 'pytest', '--pyargs', 'tf_slim', '-q', '--no-summary']
    command += ['-n', str(os.cpu_count()), '-p', 'no:cacheprovider', '--junitxml', junit]
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL='3')
    if not plain:
        command += ['-p', 'slimguard']
        paths = [str(ROOT), os.environ.get('PYTHONPATH')]
        environment['PYTHONPATH'] = os.pathsep.join(path for path in paths if path)
    # Away from the repository, whose settings for pytest are not meant for this suite.
    subprocess.run(command, env=environment, cwd=os.path.dirname(junit))


def read_results(junit: str) -> Tuple[Dict[str, int], Dict[str, List[str]]]:
    """Counts outcomes, and lists the tests that did not pass under their causes."""
    suite = ElementTree.parse(junit).getroot().find('testsuite')
    counts = {name: int(suite.get(name)) for name in ('tests', 'failures', 'errors', 'skipped')}
    causes = collections.defaultdict(list)
    for case in suite.iter('testcase'):
        for outcome in case.findall('failure') + case.findall('error'):
            test = '.'.join(filter(None, (case.get('classname'), case.get('name'))))
            causes[cause_of(outcome)].append(test)
    return counts, causes


def cause_of(outcome: ElementTree.Element) -> str:
    message = ' '.join((outcome.get('message') + '\n' + outcome.text).split())
    for pattern, cause in CAUSES:
        if re.search(pattern, message):
            return cause
    return ' '.join(outcome.get('message').split())[:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--plain', action='store_true', help='without slimguard')
    plain = parser.parse_args().plain
    with tempfile.TemporaryDirectory() as folder:
        junit = os.path.join(folder, 'results.xml')
        run_suite(plain, junit)
        counts, causes = read_results(junit)
    failed, errors = counts['failures'], counts['errors']
    passed = counts['tests'] - failed - errors - counts['skipped']
    print('\n{} passed, {} failed, {} errors'.format(passed, failed, errors))
    for cause, tests in sorted(causes.items(), key=lambda item: (-len(item[1]), item[0])):
        print('\n{} x {}'.format(len(tests), cause))
        for test in sorted(tests):
            print('    ' + test)


if __name__ == '__main__':
    main()
