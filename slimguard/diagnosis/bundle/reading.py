"""Reads a bundle, and believes nothing that it says.

Anything that a writer would not have made is a `BundleError`. Reading takes memory in proportion to
the size of the files, and not to the sizes that they claim.
"""

import contextlib
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard.diagnosis.bundle.arrays import read_arrays
from slimguard.diagnosis.bundle.files import (
    ARRAYS,
    GRAPH,
    INDEX,
    JSON,
    BundleError,
    Files,
    damaged,
)
from slimguard.diagnosis.bundle.incident_json import check_step, parse_incident, require
from slimguard.diagnosis.bundle.state import State
from slimguard.diagnosis.rerun import ExportedStep
from slimguard.system import files


class Bundle(NamedTuple):
    """What is in a bundle.

    Attributes:
      path: the folder.
      incident: the fields of the `Incident`, a dictionary.
      diagnosis: `Diagnosis.to_dict()`, or None if there was none.
      text: the diagnosis in a few lines.
      versions: of TensorFlow, numpy, Python and slimguard, where it was made.
      values: what the step drew, by Tensor names.
      exported: the step.
      history: the last steps, as `History.to_dict` gives them; None if they are not known.
      variables: called with names of variable ops; yields dictionaries with their values. Of a
        remote bundle they are copied to this machine at the first call; the copy goes when nobody
        holds this any more, or the process ends.
    """

    path: str
    incident: Dict[str, Any]
    diagnosis: Optional[Dict[str, Any]]
    text: str
    versions: Dict[str, str]
    values: Dict[str, np.ndarray]
    exported: ExportedStep
    history: Optional[Dict[str, Any]]
    variables: Callable[[List[str]], Iterable[Dict[str, np.ndarray]]]


def read(path: files.Path) -> Bundle:
    """Opens a bundle. The arrays are read; the variables are read when they are asked for.

    Args:
      path: the folder, on any file system that `tf.io.gfile` knows.

    Raises:
      BundleError: if anything in it is missing or damaged, or leads out of the folder.
    """
    opened = Files(files.as_path(path, 'bundle'))
    try:
        return _read(opened)
    except BaseException:
        opened.close()
        raise


def _read(opened: Files) -> Bundle:
    with _blaming(JSON):
        said = parse_incident(opened)
        check_step(said['step'])
    with _blaming(ARRAYS):
        values = read_arrays(opened, said['arrays'])
    with _blaming(JSON):
        require(set(values) <= set(said['step']['sources']), 'arrays: not among step.sources')
    with _blaming(GRAPH):
        exported = ExportedStep(_read_graph(opened), said['step'])
    with _blaming(INDEX):
        variables = State(opened, said['step']['variables'])
    return Bundle(
        opened.path,
        said['incident'],
        said['diagnosis'],
        said['text'],
        said['versions'],
        values,
        exported,
        said['history'],
        variables,
    )


def read_json(path: files.Path) -> Dict[str, Any]:
    """What incident.json of a bundle says, checked as far as its outline goes.

    Raises:
      BundleError: if there is none or it is damaged.
    """
    opened = Files(files.as_path(path, 'bundle'))
    try:
        with _blaming(JSON):
            return parse_incident(opened)
    finally:
        opened.close()


@contextlib.contextmanager
def _blaming(name: str):
    """Makes one kind of error of all that a damaged or hostile file can cause.

    Libraries raise what they like when they are handed garbage: zlib.error, struct.error,
    UnicodeDecodeError, MemoryError, protobuf's own.
    """
    try:
        yield
    except BundleError:
        raise
    except Exception as error:
        raise damaged(name, '%s: %s' % (type(error).__name__, error)) from None


def _read_graph(opened: Files) -> tf1.GraphDef:
    graph_def = tf1.GraphDef()
    graph_def.ParseFromString(opened.read(GRAPH))
    if not graph_def.node:
        raise damaged(GRAPH, 'an empty graph')
    return graph_def
