"""Keeps values of ours on an object of TensorFlow, such as a graph or a session."""

from typing import Any, Callable


def kept_on(thing: Any, name: str, make: Callable[[], Any]) -> Any:
    """The value that we keep on an object of TensorFlow; the first call makes it.

    The value is an attribute of the object. A dictionary of ours would keep both alive forever,
    since the value refers to the object; and `export_meta_graph` warns of values in collections.
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
