"""Programs that are forked from the template run as in an interpreter of their own."""

import sys
import textwrap

import pytest

from tests.helpers.children import forked_python, python
from tests.helpers.user_scripts import SCRIPTS, write_scripts


def compare(arguments, folder):
    plain = python(*arguments, cwd=str(folder), input='some input')
    forked = forked_python(*arguments, cwd=str(folder), input='some input')
    assert (forked.returncode, forked.stdout) == (plain.returncode, plain.stdout)
    assert forked.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


@pytest.mark.full
def test_a_script_a_module_and_a_command_run_as_plain_python_runs_them(tmp_path):
    world = """
        import os, sys
        print(__name__, sys.argv, sys.path[0], sorted(os.environ.items()), os.getcwd())
        print(sys.stdin.read())
        sys.exit('no')
        """
    write_scripts(tmp_path, world)
    code = (tmp_path / 'script.py').read_text()
    for arguments in (['script.py'], ['-m', 'script'], ['-c', code]):
        compare([*arguments, '--flag', 'x y'], tmp_path)


@pytest.mark.full
# Without "its world": the `__main__` of a forked program has fewer names.
@pytest.mark.parametrize('script', sorted(set(SCRIPTS) - {'its world'}))
def test_each_script_ends_as_plain_python_ends_it(tmp_path, script):
    write_scripts(tmp_path, SCRIPTS[script])
    compare(['script.py', '--flag', 'x y'], tmp_path)


def test_tensorflow_is_there_and_nothing_was_done_with_it():
    code = """
        import sys
        assert {'tensorflow', 'tf_slim'} <= set(sys.modules)
        import tensorflow as tf
        print(tf.executing_eagerly(), len(tf.compat.v1.get_default_graph().get_operations()))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            print(session.run(tf.constant(3) + 4))
        """
    eager = 'False' if sys.version_info < (3, 8) else 'True'
    assert forked_python('-c', textwrap.dedent(code)).stdout == eager + ' 0\n7\n'
