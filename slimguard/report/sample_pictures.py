"""The samples of a batch as pictures on the page: PNG files, with rings around what is bad."""

from typing import List, NamedTuple

from slimguard.report.png_files import PngEncoder, address_of
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


def sheet_of(sheet: Sheet, encoder: PngEncoder) -> PictureSheet:
    """The pictures of a sheet."""
    shape = ' \N{MULTIPLICATION SIGN} '.join(map(str, sheet.shape))
    return PictureSheet(
        array='%s, %s, %s' % (cut(sheet.name, 400), sheet.dtype, shape),
        scale=_scale(sheet),
        pictures=[_picture(s, encoder.encode(s.pixels)) for s in sheet.samples],
    )


def _scale(sheet: Sheet) -> str:
    said = 'Black is %.4g and white %.4g' % (sheet.black, sheet.white)
    shown = len(sheet.samples)
    if shown < sheet.rows:
        said += '; %d of the %d samples are shown, bad ones before others' % (shown, sheet.rows)
    return said + '.'


def _picture(sample: Sample, file: bytes) -> Picture:
    height, width = sample.pixels.shape[:2]
    return Picture(
        address=address_of(file),
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
