"""The report as one picture: the beginning of the page."""

import io
from typing import List, Union

import numpy as np
from matplotlib import image

from slimguard.report import cards, charts, report_data
from slimguard.report.cards import Card
from slimguard.report.report_data import ReportData

_MARGIN = 40  # pixels


def draw(data: ReportData) -> bytes:
    """The picture, as a PNG file: the loss, and the card of the most important incident."""
    links = dict.fromkeys((incident.number for incident in data.incidents), '')
    loss = charts.loss_chart(data.curve, data.incidents, links)
    parts = [_text([data.title], size=24), _text([report_data.summary(data), data.made])]
    if loss is not None:
        parts += [_text(['Loss'], size=18), charts.pixels(loss)]
    for kind in cards.kinds_of(data, lambda chart, name: charts.pixels(chart))[:1]:
        parts += [_text([kind.heading], size=18), _text([kind.count]), *_card(kind.card)]
    file = io.BytesIO()
    shown = np.concatenate(parts)
    framed = np.empty([len(shown) + 2 * _MARGIN, shown.shape[1] + 2 * _MARGIN, 4], np.uint8)
    framed[:] = shown[0, 0]  # paper
    framed[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = shown
    image.imsave(file, framed, format='png')
    return file.getvalue()


def _text(lines: List[str], size: int = 12) -> np.ndarray:
    return charts.pixels(charts.text(lines, size))


def _card(card: Union[Card, str]) -> List[np.ndarray]:
    if isinstance(card, str):
        return [_text([card])]
    facts = ['%s: %s %s %s' % fact for fact in card.facts]
    parts = [_text([card.heading, card.more, *facts, card.to_do])]
    for drawing in card.drawings:
        parts += [_text([drawing.heading], size=14), drawing.drawn, _text([drawing.caption])]
    return parts
