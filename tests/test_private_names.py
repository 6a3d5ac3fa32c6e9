"""All uses of TensorFlow's private names are in one file, since a new version may break them."""

import ast
import functools
import pathlib

import pytest

import slimguard

PACKAGE = pathlib.Path(slimguard.__file__).parent
# The folder compat/ may name private modules: its table has the names that tf-slim imports.
THERE = PACKAGE / 'compat' / 'tf_private.py'
CALLERS = PACKAGE / 'compat' / 'tf_callers.py'
# Python's own names with an underscore: of namedtuples, and os._exit.
PYTHONS = {'_asdict', '_fields', '_make', '_replace', '_exit'}


def is_private(name):
    return name.startswith('_') and not name.startswith('__')


def text_of(node):
    """The text of a literal, on any Python; empty for anything else."""
    text = vars(node).get('value', vars(node).get('s'))
    return text if isinstance(text, str) else ''


def own_names(tree):
    """The names that a module defines: methods, functions, classes, and attributes of `self`."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.keyword) and node.arg:  # as in vars(self).update(_name=...)
            names.add(node.arg)
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_set and isinstance(node.value, ast.Name) and node.value.id == 'self':
            names.add(node.attr)
    return names


@functools.lru_cache(maxsize=None)
def ours():
    """The names that some module of the package defines."""
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob('*.py')]
    return frozenset().union(*map(own_names, trees))


def attributes(tree):
    """Yields (line, name) of each attribute that is read or set, by a dot or by `getattr`.

    An attribute of `self` is left out if any class of the package sets it: a subclass may be in
    another file.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_selfs = isinstance(node.value, ast.Name) and node.value.id == 'self'
            if not (is_selfs and node.attr in ours()):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, 'id', '')[-4:] == 'attr':
            for argument in ast.walk(ast.Tuple(node.args[1:2], ast.Load())):
                yield node.lineno, text_of(argument)


def private_names(path):
    """Yields (line, name) of each use of others' private names in a file."""
    tree = ast.parse(path.read_text())
    known = own_names(tree) | PYTHONS
    for line, name in attributes(tree):
        if is_private(name) and name not in known and '_slimguard' not in name:
            yield line, name


def private_modules(path):
    """Yields (line, text) of imports from `tensorflow.python`, and of strings that name it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or '']
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [text_of(node)]
        for name in names:
            if name.startswith('tensorflow.python'):
                yield node.lineno, name


@pytest.mark.full
def test_private_names_of_tensorflow_are_in_one_file():
    names = [name for path in (THERE, CALLERS) for _, name in private_names(path)]
    assert {'_mutation_lock', '_getframe', '_update_input', '_close_op'} <= set(names)
    paths = [path for path in PACKAGE.rglob('*.py') if path.parent != THERE.parent]
    assert len(paths) > 100
    elsewhere = [
        '%s:%d: %s' % ((path.relative_to(PACKAGE),) + found)
        for path in sorted(paths)
        for find in (private_names, private_modules)
        for found in find(path)
    ]
    assert not elsewhere


@pytest.mark.full
def test_variables_of_tensorflows_functions_are_read_in_that_file_only():
    readers = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob('*.py')
        for _, name in attributes(ast.parse(path.read_text()))
        if name in ('f_locals', 'f_back')
    ]
    assert set(readers) == {CALLERS.relative_to(PACKAGE)}
