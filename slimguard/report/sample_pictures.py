"""The samples of a batch as pictures on the page: PNG files, with rings around what is not finite.

A PNG file becomes a part of the page, as a ``data:`` address.
"""

import base64
from typing import List, NamedTuple, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.report.samples import Sample, Sheet
from slimguard.system.texts import cut

_SMALL = 24  # pixels; in a smaller sample every pixel can be seen


class Ring(NamedTuple):
    """What is around a pixel: an outline of its own, or a circle if it is too small to be seen.

    Attributes:
      x, y: the upper left corner, or the centre of the circle.
      radius: of the circle; 0 for the pixel's own outline.
    """

    x: float
    y: float
    radius: float


class Picture(NamedTuple):
    """A sample.

    Attributes:
      address: of the PNG file.
      width, height: in pixels.
      said: what it shows.
      kind: 'bad', 'suspect' or ''.
      rings: around what is not finite.
    """

    address: str
    width: int
    height: int
    said: str
    kind: str
    rings: List[Ring]


class PictureSheet(NamedTuple):
    """The samples of one array: which array it is, what black and white mean, the pictures."""

    array: str
    scale: str
    pictures: List[Picture]


def sheet_of(sheet: Sheet) -> PictureSheet:
    """The pictures of a sheet."""
    shape = ' \N{MULTIPLICATION SIGN} '.join(map(str, sheet.shape))
    files = png_files([sample.pixels for sample in sheet.samples])
    return PictureSheet(
        array='%s, %s, %s' % (cut(sheet.name, 400), sheet.dtype, shape),
        scale=_scale(sheet),
        pictures=[_picture(sample, file) for sample, file in zip(sheet.samples, files)],
    )


def png_files(images: Sequence[np.ndarray]) -> List[bytes]:
    """PNG files of uint8 images [height, width, 3 or 4], by TensorFlow's own encoder."""
    # A training next door keeps its GPU: a session takes all the memory of those that it may use.
    config = tf1.ConfigProto(device_count={'GPU': 0})
    with tf.Graph().as_default() as graph:  # not the user's; and no eager mode in it
        pixels = tf1.placeholder(tf.uint8, [None, None, None])
        file = tf1.image.encode_png(pixels, compression=9)
        with tf1.Session(graph=graph, config=config) as session:
            return [session.run(file, {pixels: image}) for image in images]


def _scale(sheet: Sheet) -> str:
    said = 'Black is %.4g and white %.4g' % (sheet.black, sheet.white)
    shown = len(sheet.samples)
    if shown < sheet.rows:
        said += '; %d of the %d samples are shown, bad ones before others' % (shown, sheet.rows)
    return said + '.'


def _picture(sample: Sample, file: bytes) -> Picture:
    height, width = sample.pixels.shape[:2]
    return Picture(
        address='data:image/png;base64,' + base64.b64encode(file).decode('ascii'),
        width=width,
        height=height,
        said=_said(sample),
        kind='bad' if sample.bad else 'suspect' if sample.suspect else '',
        rings=[_ring(x, y, max(height, width)) for y, x in sample.bad_pixels],
    )


def _said(sample: Sample) -> str:
    said = 'row %d' % sample.row
    if sample.bad:
        said += ', %d not finite' % sample.bad
    elif sample.suspect:
        said += ', not finite later on'
    if sample.wild is not None:
        said += ', as far as %.3g' % sample.wild
    return said


def _ring(x: int, y: int, side: int) -> Ring:
    if side < _SMALL:
        return Ring(x, y, 0)
    return Ring(x + 0.5, y + 0.5, round(side * 0.06, 1))
