"""A training as a page to look at: what there is to report is read and checked first, drawn then.

The files:

    report.py              the command

    report_data.py         all there is to report
    incident_view.py       an incident of the record, checked
    bundle_view.py         a bundle, checked
    loss_history.py        the loss of a training, from event files
    layer_ranges.py        the ranges along a bad step, put together by layers
    samples.py             the samples of a batch as images

    words.py               words and numbers that the page and the picture share
    scales.py              scales of charts, and their ticks
    loss_chart_layout.py   the chart of the loss: what goes where; drawn by templates/ and png.py
    range_chart_layout.py  the chart of the ranges, likewise
    sample_pictures.py     the samples as PNG files
    html.py                the page; templates/ has its HTML and its looks
    png.py                 the same as one picture
"""
