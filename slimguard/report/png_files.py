"""PNG files of pixels, by TensorFlow's own encoder; on a page they are ``data:`` addresses."""

import base64
from typing import List, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1


class PngEncoder:
    """Makes PNG files, in a graph and a session of its own that begin with the first one.

    A context manager: the session ends with it.
    """

    def __init__(self):
        self._session: Optional[tf1.Session] = None

    def __enter__(self) -> 'PngEncoder':
        return self

    def __exit__(self, *exception) -> None:
        if self._session is not None:
            self._session.close()

    def encode(self, pixels: np.ndarray) -> bytes:
        """The file of a uint8 image [height, width, 3 or 4]."""
        session = self._session
        if session is None:
            session = self._session = self._begun()
        return session.run('file:0', {'pixels:0': pixels})

    def _begun(self) -> tf1.Session:
        # A training next door keeps its GPU: a session takes all the memory of those that it may
        # use.
        config = tf1.ConfigProto(device_count={'GPU': 0})
        with tf.Graph().as_default() as graph:  # not the user's; and no eager mode in it
            pixels = tf1.placeholder(tf.uint8, [None, None, None], name='pixels')
            tf1.image.encode_png(pixels, compression=6, name='file')
        return tf1.Session(graph=graph, config=config)


def png_files(images: Sequence[np.ndarray]) -> List[bytes]:
    """PNG files of uint8 images [height, width, 3 or 4]."""
    with PngEncoder() as encoder:
        return [encoder.encode(image) for image in images]


def address_of(file: bytes) -> str:
    """A PNG file as a part of the page."""
    return 'data:image/png;base64,' + base64.b64encode(file).decode('ascii')
