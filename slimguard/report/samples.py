"""The samples of a batch: as images if they have the shape of images, else as numbers."""

from types import MappingProxyType
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from slimguard.diagnosis.ranges import numbers

_MOST_SHEETS = 4
_LEAST_SIDE, _MOST_SIDE = 4, 8192
_SHOWN_SIDE = 160  # pixels; larger images are shrunk
_CHANNELS = (1, 3, 4)
_LARGEST = np.finfo(np.float64).max
BAD = (255, 0, 144)  # the colour of a pixel that is not finite


class Sample(NamedTuple):
    """One sample of a batch.

    Attributes:
      row: its place in the batch.
      pixels: uint8 [height, width, 3 or 4]; a pixel that is not finite has the colour `BAD`.
      bad_pixels: (y, x) of the first 64 of `pixels` that are not finite.
      bad: how many values of the sample are not finite.
      suspect: whether the diagnosis says that it made a later tensor bad.
    """

    row: int
    pixels: np.ndarray
    bad_pixels: List[Tuple[int, int]]
    bad: int
    suspect: bool


class Sheet(NamedTuple):
    """The samples of one array.

    Attributes:
      name: the Tensor's name.
      dtype, shape: of the array.
      rows: how many samples the batch has.
      black, white: the values that are shown as black and as white.
      samples: the samples that are shown, in the order of the batch; bad ones are chosen first.
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    rows: int
    black: float
    white: float
    samples: List[Sample]


def sheets(
    values: Dict[str, np.ndarray],
    bad_rows: Mapping[str, Sequence[int]] = MappingProxyType({}),
    most: int = 16,
) -> List[Sheet]:
    """The arrays that look like images: first those with a bad sample.

    Args:
      values: arrays by Tensor names.
      bad_rows: the rows that made a later tensor bad, by Tensor names.
      most: the most samples to show of all arrays together. Each array shows at least one, and bad
        samples before others.
    """
    views = [(name, as_images(value)) for name, value in values.items()]
    views = [(name, images) for name, images in views if images is not None]
    views.sort(key=lambda view: not bad_rows.get(view[0]) and is_finite(values[view[0]]))
    views = views[:_MOST_SHEETS]
    fitting = max(1, most // max(1, len(views)))
    return [
        _sheet(name, values[name], images, set(bad_rows.get(name, ())), fitting)
        for name, images in views
        if images is not None
    ]


def _shrinking(sides) -> int:
    return -(-max(sides) // _SHOWN_SIDE)


def as_images(value: np.ndarray) -> Optional[np.ndarray]:
    """A view [batch, height, width, channels] of an array; None if it does not look like images."""
    value = np.asarray(value)
    if value.ndim != 4 or not value.size or value.dtype.kind in 'OSUbc':
        return None
    for images in (value, np.moveaxis(value, 1, 3)):
        sides = images.shape[1:3]
        if images.shape[3] in _CHANNELS and all(_LEAST_SIDE <= s <= _MOST_SIDE for s in sides):
            return images
    return None


def is_finite(value: np.ndarray) -> bool:
    """Whether all numbers of an array are finite."""
    value = np.asarray(value)
    return value.dtype.kind in 'iubOSU' or bool(np.isfinite(numbers(value)).all())


def _sheet(name: str, value, images: np.ndarray, suspects: Set[int], most: int) -> Sheet:
    counts = _count_bad(images)
    black, white = _scale(images)
    samples = []
    for row in _choose(counts, suspects, most):
        pixels, bad = _pixels(numbers(images[row]), black, white)
        samples.append(Sample(row, pixels, bad, int(counts[row]), row in suspects))
    return Sheet(name, str(value.dtype), tuple(value.shape), len(images), black, white, samples)


def _count_bad(images: np.ndarray) -> np.ndarray:
    """How many values of each sample are not finite."""
    return np.count_nonzero(~np.isfinite(numbers(images)), axis=(1, 2, 3))


def _choose(counts: np.ndarray, suspects: Set[int], most: int) -> List[int]:
    """The rows to show, in order. Bad rows are chosen first, then suspects, then the first rows."""
    order = np.where(counts > 0, 0, 2) + 1
    order[[row for row in suspects if 0 <= row < len(counts)]] -= 1
    return sorted(np.argsort(order, kind='stable')[:most].tolist())


def _scale(images: np.ndarray) -> Tuple[float, float]:
    """The values shown as black and white: a usual range such as [0, 255], or the images' range."""
    if images.dtype == np.uint8:
        return 0.0, 255.0
    ends = []
    for image in images[:: max(1, len(images) // 32)]:
        finite = _finite(image)
        if finite.size:
            ends.append((float(finite.min()), float(finite.max())))
    if not ends:
        return 0.0, 1.0
    # Medians of the images' minima and maxima, so that one wild sample does not make all others
    # black. Each median is one of the numbers, since a mean of two may overflow.
    low, high = (sorted(column)[len(ends) // 2] for column in zip(*ends))
    for black, white in ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)):
        if black <= low and high <= white and high - low > (white - black) / 50:
            return black, white
    if high <= low:
        room = max(0.5, 1e-3 * abs(low))
        low, high = max(low - room, -_LARGEST), min(low + room, _LARGEST)
    return low, high


def _finite(image) -> np.ndarray:
    image = numbers(image)
    return image[np.isfinite(image)]


def _pixels(
    image: np.ndarray, black: float, white: float
) -> Tuple[np.ndarray, List[Tuple[int, int]]]:
    bad: np.ndarray = np.any(~np.isfinite(image), axis=2)
    step = _shrinking(image.shape[:2])
    if step > 1:
        bad = np.logical_or.reduceat(bad, np.arange(0, bad.shape[0], step), axis=0)
        bad = np.logical_or.reduceat(bad, np.arange(0, bad.shape[1], step), axis=1)
        image = image[::step, ::step]
    with np.errstate(all='ignore'):
        shown = (image / 2.0 - black / 2) / (white / 2 - black / 2) * 255.0
    shown = np.clip(np.nan_to_num(shown), 0, 255).round().astype(np.uint8)
    pixels = np.repeat(shown, 3, axis=2) if shown.shape[2] == 1 else shown.copy()
    pixels[bad] = BAD if pixels.shape[2] == 3 else BAD + (255,)
    return pixels, [(int(y), int(x)) for y, x in np.argwhere(bad)[:64]]


# In words.


def said(sample: Sample) -> List[str]:
    """The label of a sample, in short lines."""
    told = ['row %d' % sample.row]
    if sample.bad:
        told.append('%d not finite' % sample.bad)
    elif sample.suspect:
        told.append('at fault')
    return told


def caption(sheet: Sheet) -> str:
    """A sentence: which values are black and white, and which samples are shown."""
    told = 'Black is %.4g and white %.4g' % (sheet.black, sheet.white)
    shown = len(sheet.samples)
    if shown < sheet.rows:
        told += '; %d of the %d samples are shown' % (shown, sheet.rows)
        is_known = any(it.bad or it.suspect for it in sheet.samples)
        told += ', bad ones before others' if is_known else ''
    return told + '.'


_MOST_ROWS, _MOST_NUMBERS = 3, 16


class Numbers(NamedTuple):
    """An array of the batch that holds no images, as numbers.

    Attributes:
      name: the Tensor's name.
      outline: its dtype and shape, and how many of its rows are shown.
      lines: the first numbers of some rows, a line for each: bad rows and a good row; or the first
        two rows if none is bad.
      is_at_fault: whether it is not finite, or made a later tensor bad.
    """

    name: str
    outline: str
    lines: str
    is_at_fault: bool


def in_numbers(
    values: Dict[str, np.ndarray],
    bad_rows: Mapping[str, Sequence[int]] = MappingProxyType({}),
    suspects: Sequence[str] = (),
    places: Mapping[str, Sequence[Tuple[int, ...]]] = MappingProxyType({}),
) -> List[Numbers]:
    """The arrays that are no images: non-finite ones first, then suspects, then by size.

    Args:
      values: arrays by Tensor names; those that hold no numbers are left out.
      bad_rows: the rows at fault, by Tensor names. Rows that are not finite are bad as well.
      suspects: the names of the arrays that made a later tensor bad.
      places: the indices of numbers at fault, by Tensor names. They are put into brackets.
    """
    found = []
    for name, value in values.items():
        value = np.asarray(value)
        if not value.size or value.dtype.kind in 'OSU' or as_images(value) is not None:
            continue
        lines = _lines(value, set(bad_rows.get(name, ())), places.get(name, ()))
        outline = '%s%s' % (value.dtype, list(value.shape) if value.ndim else ', a scalar')
        if value.ndim and len(lines) < len(value) and lines[0].startswith('row'):
            outline += ', %d of %d rows' % (len(lines), len(value))
        is_at_fault = not is_finite(value) or name in suspects
        order = is_finite(value), not is_at_fault, -value.size
        found.append((order, Numbers(name, outline, '\n'.join(lines), is_at_fault)))
    return [shown for _, shown in sorted(found, key=lambda each: each[0])][:_MOST_SHEETS]


def _lines(value: np.ndarray, bad: Set[int], places: Sequence[Tuple[int, ...]]) -> List[str]:
    is_float = value.dtype.kind not in 'iub'
    form = '%.4g' if is_float else '%d'
    if not value.ndim:
        return [form % numbers(value)]
    flat = value.reshape(len(value), -1)
    if value.size > 1 and bool((numbers(value) == numbers(flat)[0, 0]).all()):
        return ['all %d numbers are %s' % (value.size, form % numbers(flat)[0, 0])]
    if is_float:
        bad = bad | set(np.flatnonzero(~np.isfinite(numbers(flat)).all(axis=1)).tolist())
    good = [row for row in range(min(len(value), len(bad) + 2)) if row not in bad]
    inside = [it for it in places if len(it) == value.ndim and np.all(np.less(it, value.shape))]
    at_fault = {divmod(int(np.ravel_multi_index(it, value.shape)), flat.shape[1]) for it in inside}
    lines = []
    for row in sorted(bad)[:_MOST_ROWS] + good[: 1 if bad else 2]:
        shown = numbers(flat[row]) if is_float else flat[row]
        said = ' '.join(
            ('[%s]' if (row, column) in at_fault else '%s') % (form % number)
            for column, number in enumerate(shown[:_MOST_NUMBERS].tolist())
        )
        more = ' \N{HORIZONTAL ELLIPSIS}' if len(shown) > _MOST_NUMBERS else ''
        which = ', bad' if row in bad else ', good' if bad else ''
        lines.append('row %d%s: %s%s' % (row, which, said, more))
    return lines
