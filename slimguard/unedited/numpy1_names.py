"""The names that numpy has dropped since 1.19, for scripts that were written with them.

While `install` is in force, ``np.int`` and its like are there again, for the script and for the
libraries it uses. What the installed numpy has, under whatever name, stays as it is.
"""

import builtins
import warnings
from typing import Any, Callable, Dict, Optional

import numpy as np

from slimguard.system import terminal

# Those that were Python's own types.
_BUILTINS = {
    **{name: getattr(builtins, name) for name in 'bool complex float int object str'.split()},
    'long': int,
    'unicode': str,
}
# Those that are there under another name.
_RENAMED = {
    'Inf': 'inf',
    'Infinity': 'inf',
    'NAN': 'nan',
    'NaN': 'nan',
    'PINF': 'inf',
    'alltrue': 'all',
    'bool8': 'bool_',
    'complex_': 'complex128',
    'cumproduct': 'cumprod',
    'float_': 'float64',
    'infty': 'inf',
    'mat': 'asmatrix',
    'product': 'prod',
    'round_': 'round',
    'row_stack': 'vstack',
    'sometrue': 'any',
    'string_': 'bytes_',
    'trapz': 'trapezoid',
    'unicode_': 'str_',
}
# What a module is asked for a name that it does not have.
_ASKED = '__getattr__'


def _asscalar(a: Any) -> Any:
    return a.item()


_names: Optional['_DroppedNames'] = None


def install() -> None:
    """Puts the names back that the installed numpy lacks. Twice is as once."""
    global _names
    if _names is None:
        dropped = _dropped()
        _names = _DroppedNames(dropped) if dropped else None


def uninstall() -> None:
    """Undoes what `install` did."""
    global _names
    if _names is not None:
        _names.remove()
    _names = None


def _dropped() -> Dict[str, Any]:
    """The names that the installed numpy lacks, and what they meant."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # numpy has something to say of names it will have again
        meant: Dict[str, Any] = dict(_BUILTINS, NINF=-np.inf, asscalar=_asscalar)
        meant.update((old, getattr(np, new, None)) for old, new in _RENAMED.items())
        return {name: it for name, it in meant.items() if not hasattr(np, name)}


class _DroppedNames:
    """In the place of numpy's ``__getattr__``, which is asked for what is no global of numpy."""

    def __init__(self, dropped: Dict[str, Any]):
        self._dropped = dropped
        self._numpys: Optional[Callable] = vars(np).get(_ASKED)
        self._told = False
        setattr(np, _ASKED, self._getattr)

    def remove(self) -> None:
        # Another may have been put over it, and asks it: it answers as numpy from then on.
        self._dropped = {}
        if vars(np).get(_ASKED) != self._getattr:
            return
        if self._numpys is None:
            delattr(np, _ASKED)
        else:
            setattr(np, _ASKED, self._numpys)

    def _getattr(self, name: str) -> Any:
        if name in self._dropped:
            self._tell(name)
            return self._dropped[name]
        if self._numpys is not None:
            return self._numpys(name)
        raise AttributeError('module %r has no attribute %r' % (np.__name__, name))

    def _tell(self, name: str) -> None:
        if not self._told:
            self._told = True
            terminal.complain(
                'numpy %s has dropped np.%s: --tf1 puts it back, as all its old names'
                % (np.__version__, name)
            )
