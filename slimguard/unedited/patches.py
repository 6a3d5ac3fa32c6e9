"""Replaces methods of TensorFlow for a while, and keeps notes on its objects."""

import functools
from typing import Any, Callable, List, Tuple

from slimguard.graph.sessions import REPLACES


def kept_on(thing: Any, name: str, make: Callable[[], Any]) -> Any:
    """A value that we keep on an object of TensorFlow, made when it is first asked for.

    The value refers to the object in turn, so a dictionary of ours would keep both for ever.
    """
    name = '_slimguard_' + name
    kept = getattr(thing, name, None)
    if kept is None:
        kept = make()
        setattr(thing, name, kept)
    return kept


def kept_already(thing: Any, name: str) -> Any:
    """The value that `kept_on` keeps on an object, or None."""
    return getattr(thing, '_slimguard_' + name, None)


class Patches:
    """Replaces methods, and puts the originals back."""

    def __init__(self) -> None:
        self._replaced: List[Tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, around: Callable) -> None:
        """Replaces a method of a class.

        Args:
          owner: the class.
          name: the method's name; a parent class that has it keeps its own.
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
        """Does the same in a class and in all its subclasses that define it, also later ones."""
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
