"""The report as one picture: the words and charts of the page, one below the other."""

import io
from typing import List, Union

import numpy as np
from matplotlib import image

from slimguard.report import cards, charts, report_data, words
from slimguard.report.cards import Card, Kind
from slimguard.report.report_data import ReportData

_MOST_ROWS, _MARGIN = 30, 40  # of the table; pixels


def draw(data: ReportData) -> bytes:
    """The picture, as a PNG file."""
    links = dict.fromkeys((incident.number for incident in data.incidents), '')
    loss = charts.loss_chart(data.curve, data.incidents, links)
    kinds = cards.kinds_of(data, lambda chart, name: charts.pixels(chart))
    parts = [_text([data.title], size=24), _text([report_data.summary(data), data.made])]
    parts += _kind(kinds[0]) if kinds else []
    if loss is not None:
        parts += [_text(['Loss'], size=18), charts.pixels(loss)]
    parts += [part for kind in kinds[1:] for part in _kind(kind)]
    notes = cards.broken(data) + data.notes + ([words.NO_CURVE] if data.curve is None else [])
    rows = [
        '%s, %s: %s' % (cards.heading(i), i.action or 'not said', i.cause)
        for i in data.incidents[-_MOST_ROWS:]
    ]
    parts += [_text(lines) for lines in (rows, notes) if lines]
    file = io.BytesIO()
    shown = np.concatenate(parts)
    framed = np.empty([len(shown) + 2 * _MARGIN, shown.shape[1] + 2 * _MARGIN, 4], np.uint8)
    framed[:] = shown[0, 0]  # paper
    framed[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = shown
    image.imsave(file, framed, format='png')
    return file.getvalue()


def _text(lines: List[str], size: int = 12) -> np.ndarray:
    return charts.pixels(charts.text(lines, size))


def _kind(kind: Kind) -> List[np.ndarray]:
    return [
        _text([kind.heading], size=18),
        *([_text([kind.count])] if kind.count else []),
        *_card(kind.card),
    ]


def _card(card: Union[Card, str]) -> List[np.ndarray]:
    if isinstance(card, str):
        return [_text([card])]
    facts = [' '.join(filter(None, (f.name + ':', f.code, f.words, f.line))) for f in card.facts]
    facts = [line for fact in facts for line in fact.split('\n')]
    to_do = 'What to do: ' + card.to_do if card.to_do else ''
    said = [card.heading, card.more, to_do, *card.lines.split('\n'), *facts]
    parts = [_text([line for line in said if line])]
    for drawing in card.drawings:
        parts += [_text([drawing.heading], size=14), drawing.drawn, _text([drawing.caption])]
    return parts
