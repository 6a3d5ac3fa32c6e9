"""The folders of the package, and which of them may import which."""

import ast
import pathlib
import re

import slimguard

PACKAGE = pathlib.Path(slimguard.__file__).parent
# From low to high. Names without a folder are modules of the package itself.
ROOMS = (
    'system compat graph gate incidents checkpoints diagnosis cluster report training hooks '
    'learning unedited command __main__'
).split()


def room_of(name):
    """The folder or top module that a dotted name belongs to; None for the package itself."""
    parts = name.split('.')
    return parts[1] if len(parts) > 1 else None


def modules():
    """Yields (dotted name, path) of every module; an `__init__.py` has its folder's name."""
    for path in sorted(PACKAGE.rglob('*.py')):
        parts = ('slimguard',) + path.relative_to(PACKAGE).with_suffix('').parts
        yield '.'.join(parts[:-1] if parts[-1] == '__init__' else parts), path


def imports():
    """Yields (module that imports, module that is imported), by their dotted names."""
    known = {name for name, _ in modules()}
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('slimguard'):
                for alias in node.names:
                    full = '%s.%s' % (node.module, alias.name)
                    yield name, full if full in known else node.module


def test_a_room_imports_from_lower_rooms_only():
    found = list(imports())
    assert len(found) > 100
    wrong = []
    for importer, imported in found:
        ours, theirs = room_of(importer), room_of(imported)
        if ours in ROOMS and theirs in ROOMS and ROOMS.index(theirs) > ROOMS.index(ours):
            wrong.append('%s imports %s' % (importer, imported))
    assert not wrong


def test_every_room_is_in_the_order():
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == '.py' or path.is_dir()}
    assert there - {'__init__', '__pycache__', 'py'} == set(ROOMS)
    assert len([path for path in PACKAGE.iterdir() if path.name != '__pycache__']) <= 17


def test_the_face_of_a_room_lists_its_files_and_no_other():
    for face in PACKAGE.rglob('__init__.py'):
        if face.parent == PACKAGE:
            continue
        listed = re.findall(
            r'^    (\w+(?:\.py|/))  ', ast.get_docstring(ast.parse(face.read_text())), re.M
        )
        there = {path.name for path in face.parent.glob('*.py')} - {'__init__.py'}
        there |= {path.parent.name + '/' for path in face.parent.glob('*/__init__.py')}
        assert sorted(listed) == sorted(there), face.parent.name


def test_no_circle_among_modules():
    below = {}
    for importer, imported in imports():
        below.setdefault(importer, set()).add(imported)
    done, under_way = set(), []

    def visit(module):
        assert module not in under_way, ' -> '.join(under_way + [module])
        if module in done:
            return
        under_way.append(module)
        for imported in sorted(below.get(module, ())):
            visit(imported)
        done.add(under_way.pop())

    for module in sorted(set(below) - {'slimguard'}):  # slimguard imports all, for type checkers
        visit(module)


def test_no_message_of_the_log_begins_with_the_name_of_its_logger():
    calls = re.compile(r'\blog\(\)\.\w+\(\s*[\'"]slimguard')
    assert not [name for name, path in modules() if calls.search(path.read_text())]
