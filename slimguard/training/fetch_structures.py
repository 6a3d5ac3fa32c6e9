"""What a session is asked to fetch may be any structure: `map_fetches`, `fetched_elements`."""

import collections.abc
import copy
from typing import Any, Callable, Iterator

import tensorflow as tf


def map_fetches(fetches, replace: Callable[[Any], Any]):
    """`fetches` with each single fetch replaced; the values come in the same structure as before.

    The structures are those that `Session.run` knows. A session makes each structure of values from
    the type of the fetches, except that it makes a plain list from any kind of list.
    """
    if isinstance(fetches, list):
        return [map_fetches(each, replace) for each in fetches]
    if isinstance(fetches, tuple):
        parts = [map_fetches(each, replace) for each in fetches]
        return getattr(type(fetches), '_make', type(fetches))(parts)  # _make: of a namedtuple
    if isinstance(fetches, collections.abc.MutableMapping):
        copied = copy.copy(fetches)  # a defaultdict, for one, is not made from its items alone
        for name in copied:
            copied[name] = map_fetches(copied[name], replace)
        return copied
    if isinstance(fetches, collections.abc.Mapping):
        make: Any = type(fetches)
        return make({name: map_fetches(each, replace) for name, each in fetches.items()})
    if is_attrs(fetches):
        return type(fetches)(*[map_fetches(each, replace) for each in attrs_values(fetches)])
    if isinstance(fetches, _COMPOSITE):
        return tf.nest.map_structure(replace, fetches, expand_composites=True)
    return replace(fetches)


# What a session fetches as several tensors.
_COMPOSITE = (tf.SparseTensor, tf.IndexedSlices, tf.RaggedTensor)


def is_attrs(fetches) -> bool:
    """Whether it is an object of a class that `attr.s` has decorated."""
    return hasattr(type(fetches), '__attrs_attrs__')


def attrs_values(fetches) -> list:
    """The values of the fields of such an object."""
    return [getattr(fetches, field.name) for field in type(fetches).__attrs_attrs__]


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
    """The single fetches in a structure of them, or the values in that of what was fetched."""
    if isinstance(
        fetches, collections.abc.Mapping
    ):  # whose keys may be hooks, which `tf.nest` cannot sort
        fetches = list(fetches.values())
    elif is_attrs(fetches):
        fetches = attrs_values(fetches)
    if isinstance(fetches, (list, tuple)):
        for each in fetches:
            yield from leaves(each)
    elif isinstance(fetches, tf.SparseTensor):
        # Not by `tf.nest`: TensorFlow 1.15 reads the shape then, which nobody may feed any more.
        yield from (fetches.indices, fetches.values, fetches.dense_shape)
    else:
        yield from tf.nest.flatten(fetches, expand_composites=True)
