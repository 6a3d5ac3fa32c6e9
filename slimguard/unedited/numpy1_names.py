"""The names that numpy has dropped since 1.19, for scripts that were written with them.

While `install` is in force, ``np.int`` and its like are there again, for the script and for the
libraries it uses. What the installed numpy has, under whatever name, stays as it is.
"""

import builtins
import warnings
from typing import Any, Dict

import numpy as np


def _asscalar(a: Any) -> Any:
    return a.item()


# Names that numpy has under another name.
_RENAMED = (
    'Inf=inf Infinity=inf PINF=inf infty=inf NAN=nan NaN=nan bool8=bool_ complex_=complex128 '
    'float_=float64 string_=bytes_ unicode_=str_ alltrue=all sometrue=any product=prod '
    'cumproduct=cumprod mat=asmatrix round_=round row_stack=vstack trapz=trapezoid'
).split()
# Names of Python's own types.
_BUILTINS = 'bool complex float int object str'.split()

_put_back: Dict[str, Any] = {}


def install() -> None:
    """Puts back the names that the installed numpy lacks. A second call changes nothing."""
    _put_back.update(_dropped())
    for name, meant in _put_back.items():
        setattr(np, name, meant)


def uninstall() -> None:
    """Undoes `install`, except for names that the script itself has set since."""
    for name, meant in _put_back.items():
        if vars(np).get(name) is meant:
            delattr(np, name)
    _put_back.clear()


def _dropped() -> Dict[str, Any]:
    """The names that the installed numpy lacks, and their values."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # numpy warns of names that it will have again
        meant: Dict[str, Any] = {name: getattr(builtins, name) for name in _BUILTINS}
        meant.update(long=int, unicode=str, NINF=-np.inf, asscalar=_asscalar)
        for pair in _RENAMED:
            old, new = pair.split('=')
            meant[old] = getattr(np, new, None)
        return {name: it for name, it in meant.items() if not hasattr(np, name)}
