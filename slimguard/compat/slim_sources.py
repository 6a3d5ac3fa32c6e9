"""Finds the names of TensorFlow that tf-slim's sources use. Imports neither of the two."""

import ast
import functools
import os
import re
from typing import FrozenSet, Iterable, List, Set, Tuple

from slimguard.compat.modules import find_spec
from slimguard.compat.table import TABLE, Row

# tf-slim's imports: `from tensorflow.a import b as c` and `import tensorflow.a as c`, one a line.
_IMPORT = re.compile(
    r'\n(?:from (tensorflow[\w.]*) import (\w+)|import (tensorflow[\w.]*))(?: as (\w+))?'
)


def slim_folders() -> Tuple[str, ...]:
    """The folders of the installed ``tf_slim``; empty if there is none."""
    spec = find_spec('tf_slim')
    return tuple(spec.submodule_search_locations) if spec else ()


def sources(folders: Iterable[str]) -> List[str]:
    """The Python files in folders and their subfolders."""
    return [
        os.path.join(folder, file)
        for top in folders
        for folder, _, files in os.walk(top)
        for file in files
        if file.endswith('.py')
    ]


@functools.lru_cache(maxsize=None)
def used_rows(folders: Tuple[str, ...]) -> FrozenSet[Row]:
    """The rows of the table that the tf-slim in these folders uses, its test modules included.

    Searches the text, because parsing it would add a third of a second to the import of tf-slim.
    """
    used: Set[Row] = set()
    for path in sources(folders):
        with open(path, encoding='utf-8') as file:
            source = file.read()
        imports = [
            (alias or name or module, package + '.' + name if package else module)
            for package, name, module, alias in _IMPORT.findall(source)
        ]
        used.update(row for row in TABLE if row not in used and _is_used(row, source, imports))
    return frozenset(used)


def _is_used(row: Row, source: str, imports: List[Tuple[str, str]]) -> bool:
    uses = (re.escape(alias + '.' + row.name) for alias, name in imports if name == row.module)
    return any(re.search(use + r'\b', source) for use in uses)


def names_used(path: str) -> Set[str]:
    """The full names that a Python file uses from modules of TensorFlow."""
    with open(path, encoding='utf-8') as file:
        nodes = list(ast.walk(ast.parse(file.read())))
    imports = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            package = '{}.'.format(node.module)
            imports.update((item.asname or item.name, package + item.name) for item in node.names)
        elif isinstance(node, ast.Import):
            imports.update((item.asname or item.name, item.name) for item in node.names)
    names = set(imports.values())
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add('{}.{}'.format(imports.get(node.value.id), node.attr))
    return {name for name in names if name.startswith('tensorflow.') and name[-1] != '*'}
