"""Replaces methods of TensorFlow for a while."""

import functools
from typing import Any, Callable, List, Tuple

from slimguard.graph import kept_already as kept_already
from slimguard.graph import kept_on as kept_on
from slimguard.graph.sessions import REPLACES


class Patches:
    """Replaces methods, and puts the originals back."""

    def __init__(self) -> None:
        self._replaced: List[Tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, around: Callable) -> None:
        """Replaces a method of a class.

        Args:
          owner: the class.
          name: the method's name; the methods of parent classes stay.
          around: called with the original function and its arguments, `self` among them.
        """
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(*args, **kwargs):
            return around(original, *args, **kwargs)

        setattr(method, REPLACES, original)
        self.replace(owner, name, method)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Replaces an attribute of a class or module."""
        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, new)

    def wrap_in_all(self, base: type, name: str, around: Callable) -> None:
        """As `wrap`, in a class and in all present and later subclasses that define the method."""
        for owner in _with_subclasses(base):
            if name in vars(owner):
                self.wrap(owner, name, around)
        inherited = base.__init_subclass__

        def wrap_new(cls, **kwargs):
            getattr(inherited, '__func__', lambda cls, **_: None)(cls, **kwargs)
            if name in vars(cls):
                self.wrap(cls, name, around)

        self.replace(base, '__init_subclass__', classmethod(wrap_new))

    def undo(self) -> None:
        """Puts back the originals, in reverse order."""
        for owner, name, original in reversed(self._replaced):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._replaced.clear()


def _with_subclasses(base: type) -> List[type]:
    classes = [base]
    for each in classes:
        classes.extend(one for one in type.__subclasses__(each) if one not in classes)
    return classes
