"""A training as a page to look at: what there is to report is read and checked first, drawn then.

The files:

    report.py        the command
    report_data.py   what there is to report
    loss_history.py  the loss of a training, from event files
    layer_ranges.py  the ranges along a bad step, put together by layers
    samples.py       the samples of a batch as images
    scales.py        scales of charts, and their ticks
    html.py          the page; markup.py escapes it by construction
    png.py           the same as one picture
"""
