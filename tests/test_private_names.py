"""The private names of TensorFlow have one place: what breaks with a new version is found there."""

import ast
import pathlib

import slimguard

PACKAGE = pathlib.Path(slimguard.__file__).parent
ROOMS = ('graph', 'gate')  # those that keep to it


def private_names(path):
    """Yields (line, name) of attributes that begin with `_`, but for an object's own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith('_'):
            is_own = isinstance(node.value, ast.Name) and node.value.id == 'self'
            if not is_own and not node.attr.startswith('__'):
                yield node.lineno, node.attr


def test_private_names_of_tensorflow_are_in_one_file():
    there = PACKAGE / 'graph' / 'tf_private.py'
    assert '_mutation_lock' in [name for _, name in private_names(there)]
    elsewhere = [
        '%s:%d: %s' % ((path.relative_to(PACKAGE),) + found)
        for room in ROOMS
        for path in sorted((PACKAGE / room).glob('*.py'))
        if path != there
        for found in private_names(path)
    ]
    assert not elsewhere
