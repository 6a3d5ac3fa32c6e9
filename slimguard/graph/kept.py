"""Values of ours that are kept on an object of TensorFlow, such as a graph or a session."""

from typing import Any, Callable


def kept_on(thing: Any, name: str, make: Callable[[], Any]) -> Any:
    """A value that we keep on an object of TensorFlow, made when it is first asked for.

    The value is an attribute of the object. A dictionary of ours would keep both for ever, since
    the value refers to the object; and of values in a graph's collection `export_meta_graph` warns.
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
