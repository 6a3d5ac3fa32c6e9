"""IPython and Jupyter: whether this is one, and the place of a cell.

Nothing here imports IPython: code that runs in it has it imported already.
"""

import os
import re
import sys
from typing import Any

_CELL_OF_IPYTHON_7 = re.compile(r'<ipython-input-(\d+)-')


def shell() -> Any:
    """IPython's shell, or None in plain Python."""
    ipython = sys.modules.get('IPython')
    get = getattr(ipython, 'get_ipython', None)
    return None if get is None else get()


def is_notebook() -> bool:
    """Whether a Jupyter kernel runs this. Users see its stderr, although it is no terminal."""
    return getattr(shell(), 'kernel', None) is not None


def place_of(file: str) -> str:
    """A file as users know it: a cell by its number, if that is known."""
    found = _CELL_OF_IPYTHON_7.match(file)
    if found:
        return 'cell [%s]' % found.group(1)
    named = getattr(getattr(shell(), 'compile', None), 'format_code_name', None)
    told = named(file) if named is not None else None
    if told is not None:
        return 'cell ' + told[1].replace('In[', '[')
    return 'a cell' if os.path.basename(os.path.dirname(file)).startswith('ipykernel_') else file
