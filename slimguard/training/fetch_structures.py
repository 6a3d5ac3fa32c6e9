"""What a session is asked to fetch may be any structure: taken apart here, and put together."""

import collections.abc
import copy
from typing import Any, Callable, Iterator, List, Optional, Tuple

import tensorflow as tf


def parts_of(fetches) -> Optional[Tuple[List[Any], Callable[[Any], Any]]]:
    """The parts of a structure, and a function that rebuilds it from others; None for one fetch.

    The structures are those that `Session.run` knows. A session makes each structure of values from
    the type of the fetches, except that it makes a plain list from any kind of list.
    """
    kind: Any = type(fetches)
    if isinstance(fetches, list):
        return fetches, list
    if isinstance(fetches, tuple):
        return list(fetches), getattr(kind, '_make', kind)  # _make: of a namedtuple
    if isinstance(fetches, collections.abc.MutableMapping):
        names = list(fetches)

        def filled(parts):
            copied = copy.copy(fetches)  # a defaultdict, for one, is not made from its items alone
            for name, part in zip(names, parts):
                copied[name] = part
            return copied

        return [fetches[name] for name in names], filled
    if isinstance(fetches, collections.abc.Mapping):
        return list(fetches.values()), lambda parts: kind(dict(zip(fetches, parts)))
    if hasattr(kind, '__attrs_attrs__'):  # `attr.s` has decorated the class
        values = [getattr(fetches, field.name) for field in kind.__attrs_attrs__]
        return values, lambda parts: kind(*parts)
    return None


# What a session fetches as several tensors.
_COMPOSITE = (tf.SparseTensor, tf.IndexedSlices, tf.RaggedTensor)


def map_fetches(fetches, replace: Callable[[Any], Any]):
    """`fetches` with each single fetch replaced; the values come in the same structure."""
    found = parts_of(fetches)
    if found is not None:
        parts, make = found
        return make([map_fetches(each, replace) for each in parts])
    if isinstance(fetches, _COMPOSITE):
        return tf.nest.map_structure(replace, fetches, expand_composites=True)
    return replace(fetches)


def fetched_elements(fetches, graph: tf.Graph) -> list:
    """The Tensors and Operations in a `fetches` argument of `Session.run`, of any structure."""
    elements = []
    for fetch in leaves(fetches):
        try:
            elements.append(graph.as_graph_element(fetch))
        except (TypeError, ValueError, KeyError):
            continue  # not ours to complain about: the session does
    return elements


def leaves(fetches) -> Iterator[Any]:
    """The single fetches in a structure of fetches, or the values in a structure of values."""
    found = parts_of(fetches)
    if found is not None:
        for each in found[0]:
            yield from leaves(each)
    elif isinstance(fetches, tf.SparseTensor):
        # Not by `tf.nest`: TensorFlow 1.15 reads the shape then, which nobody may feed any more.
        yield from (fetches.indices, fetches.values, fetches.dense_shape)
    else:
        yield from tf.nest.flatten(fetches, expand_composites=True)


_ELEMENTS = (tf.Tensor, tf.Operation)


def key_of(fetches):
    """A key for `fetches`: the same for the same things in the same structure."""
    kind = type(fetches)
    if issubclass(kind, _ELEMENTS):  # most often; the others take a while to ask for
        return id(fetches)
    if isinstance(fetches, (list, tuple)):
        return (kind,) + tuple([key_of(fetch) for fetch in fetches])
    if isinstance(fetches, collections.abc.Mapping):
        return (kind, *fetches, *[key_of(fetch) for fetch in fetches.values()])
    found = parts_of(fetches)
    if found is not None:
        return (kind,) + tuple([key_of(fetch) for fetch in found[0]])
    return fetches if kind is str else id(fetches)
