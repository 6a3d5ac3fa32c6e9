"""The report: a training as an HTML page. First its data are read and checked, then they are drawn.

The files:

    report.py        the command

    report_data.py   the data of a report: the record and the bundles, checked
    loss_history.py  the loss of a training, from event files
    last_steps.py    the last steps before an incident, and where in them it began
    samples.py       the samples of a batch as images
    cards.py         an incident as the page shows it, in words

    charts.py        the charts, by matplotlib: as SVG and as pixels
    page.py          the page, and the picture of it; templates/ has its HTML and CSS
"""
