"""The import of slimguard prints nothing, and loads TensorFlow only when it is needed."""

import importlib
import os
import subprocess
import sys

import pytest

import slimguard
from tests.helpers.children import forked_python

# The slimguard under test, be it installed or a checkout.
ROOT = os.path.dirname(os.path.dirname(slimguard.__file__))


def python(script):
    environment = dict(os.environ, PYTHONPATH=ROOT)
    return subprocess.run(
        [sys.executable, '-c', script], capture_output=True, text=True, env=environment
    )


def test_it_prints_nothing_and_does_not_import_tensorflow():
    run = python('import sys, slimguard; assert "tensorflow" not in sys.modules')
    assert (run.returncode, run.stdout, run.stderr) == (0, '', '')


def beside_tensorflow(script):
    """Runs a script in a process that has imported TensorFlow already, but not slimguard."""
    return forked_python('-c', script, finds='tensorflow')


def test_loading_all_of_it_prints_nothing_either_and_leaves_eager_mode_as_it_is():
    # TensorFlow itself may print; output after 'imported' is slimguard's.
    run = beside_tensorflow(
        'import sys, tensorflow, tf_slim\n'
        'before = tensorflow.executing_eagerly()\n'
        'for stream in (sys.stdout, sys.stderr):\n'
        '    print("imported", file=stream, flush=True)\n'
        'import slimguard\n'
        'slimguard.train, slimguard.NanLossHook, slimguard.instrument\n'
        'assert tensorflow.executing_eagerly() == before\n'
    )
    assert run.returncode == 0, run.stderr
    assert [out.partition('imported\n')[2] for out in (run.stdout, run.stderr)] == ['', '']


def test_every_public_name_is_there_and_they_alone_are_shown():
    run = beside_tensorflow(
        'import slimguard\n'
        'for name in slimguard.__all__:\n'
        '    assert getattr(slimguard, name) is not None, name\n'
        '    assert name in dir(slimguard), name\n'
        'slimguard.train, slimguard.instrument\n'  # imports all modules
        'shown = [name for name in dir(slimguard) if not name.startswith("__")]\n'
        'assert shown == sorted(slimguard.__all__), shown\n'
        'from slimguard import *\n'
        'print(slimguard.__version__, NanLossHook.__name__)\n'
    )
    assert run.stdout == '0.1.0 NanLossHook\n', run.stderr


def test_type_checkers_see_what_python_gives():
    import ast

    tree = ast.parse(open(slimguard.__file__).read())
    for_checkers = next(
        node for node in tree.body if isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.dump(node)
    )
    seen = {
        alias.asname: (node.module, alias.name)
        for node in for_checkers.body
        for alias in node.names
    }
    assert sorted(seen) == sorted(slimguard.__all__)
    for name, (module, original) in seen.items():
        value = getattr(importlib.import_module(module), original)
        assert getattr(slimguard, name) is value, name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'slimguard' has no attribute 'gaurd'"):
        getattr(slimguard, 'gaurd')  # noqa: B009
