"""Values of ours that are kept on an object of TensorFlow, such as a graph or a session."""

from typing import Any, Callable


def kept_on(thing: Any, name: str, make: Callable[[], Any]) -> Any:
    """A value that we keep on an object of TensorFlow, made when it is first asked for.

    The value refers to the object in turn, so a dictionary of ours would keep both for ever. And in
    a collection of a graph, `export_meta_graph` would warn that it cannot serialize the value.
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
