"""A training as a page to look at: what there is to report is read and checked first, drawn then.

The files:

    report.py              the command

    report_data.py         all there is to report
    incident_view.py       an incident of the record, checked
    bundle_view.py         a bundle, checked
    last_steps.py          the last steps before an incident, out of a bundle's history
    loss_history.py        the loss of a training, from event files
    loss_tails.py          the loss of the last steps, which goes on where event files end
    layer_ranges.py        the ranges along a bad step, put together by layers
    samples.py             the samples of a batch as images

    lead.py                the incident that the report opens with, and the kinds of incidents

    words.py               words and numbers that the page and the picture share
    scales.py              scales of charts, and their ticks
    step_ticks.py          ticks where each step has a column
    incident_marks.py      incidents along the steps: marks for few, bars for many
    incident_tables.py     the kinds of incidents, and the incidents one by one
    loss_chart_layout.py   the chart of the loss: what goes where; drawn by templates/ and png.py
    last_steps_series.py   loss and gradient norm of the last steps as lines
    heat_map.py            the norm of each gradient in them as a picture
    last_steps_layout.py   all of this on the page
    range_chart_layout.py  the chart of the ranges
    sample_pictures.py     the samples as PNG files
    png_files.py           makes PNG files
    html.py                the page; templates/ has its HTML and its looks
    png.py                 the same as one picture
    png_last_steps.py      its part on the last steps
    png_parts.py           text and axes of the picture
"""
