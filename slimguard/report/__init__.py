"""A training as a page to look at. The data are first read and checked, then drawn.

The files:

    report.py        the command

    report_data.py   the data of a report: the record and the bundles, checked
    loss_history.py  the loss of a training, from event files
    last_steps.py    the last steps before an incident, and what they tell of its cause
    layer_ranges.py  the ranges along a bad step, by layers
    samples.py       the samples of a batch as images
    words.py         words and numbers that the page and its charts share

    charts.py        the charts, by matplotlib: as SVG and as pixels
    cards.py         the words on incidents: a card for each kind, the most important first
    html.py          the page; templates/ has its HTML and its looks
    png.py           the page as one picture
"""
