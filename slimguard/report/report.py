"""A training as a page to look at: ``python -m slimguard report LOGDIR``.

The page opens with the most important incident: what made the step bad, the last steps before it,
the samples of the batch and the ranges along the step. Then come the loss with the incidents
marked, the other kinds of incidents with their causes, and a table of all incidents. The page is
one file, runs no script and loads nothing; everything that comes from the run is escaped.
"""

import os
import pathlib
import sys
import webbrowser
from typing import Any, Optional, Tuple

import tensorflow as tf

from slimguard.diagnosis import bundle
from slimguard.report import report_data
from slimguard.report.report_data import ReportData
from slimguard.system import files, logdirs, terminal


class ReportError(Exception):
    """A report cannot be made; the message says why."""


def main(
    logdir: files.Path,
    output: Optional[files.Path] = None,
    png: Optional[files.Path] = None,
    opens: bool = False,
) -> int:
    """Makes the report of a log directory.

    Args:
      logdir: the log directory of a training.
      output: the file of the page; by default slimguard/report.html in `logdir`. A file is
        replaced; a device or a FIFO (``/dev/stdout``) is opened and written to.
      png: the file of the page as a picture, or None for no picture. Needs matplotlib.
      opens: whether to open the page in the user's browser.

    Returns:
      The exit code: 0 if all is well; 1 if the record of incidents cannot be read (the page says
      so); 2 if a file could not be written, or `logdir` is no log directory.
    """
    try:
        logdir, output, png = _paths(logdir, output, png)
        if opens and (files.is_remote(output) or _is_device(output)):
            raise ReportError('--open needs a file of this machine for the page, not %s' % output)
        page = _page()
        if png is not None and page.no_charts:
            raise ReportError('--png cannot be drawn. %s' % page.no_charts)
        data = report_data.gather(logdir)
        content = page.render(data)
        _warn(data, page.no_charts)
        # JSON may hold a lone surrogate, which UTF-8 cannot encode.
        _write(output, content.encode('utf-8', 'backslashreplace'))
        if png is not None:
            _write(png, page.picture(data))
        if sys.stdout.isatty() and not opens and not _is_device(output):
            terminal.complain('add --open to see the page in a browser')
        if opens and not webbrowser.open(pathlib.Path(output).as_uri()):
            terminal.complain('no browser was found to open %s' % output)
    except ReportError as error:
        terminal.complain(error)
        return 2
    except tf.errors.OpError as error:  # a remote file system failed in the middle
        terminal.complain('%s cannot be read: %s' % (logdir, error.message))
        return 2
    return 1 if data.broken else 0


def _paths(logdir, output, png) -> Tuple[str, str, Optional[str]]:
    try:
        logdir = logdirs.require_logdir(logdir)
        default = os.path.join(bundle.folder(logdir), 'report.html')
        page_path = _file(default if output is None else output, 'output')
        png_path = None if png is None else _file(png, 'png')
    except ValueError as error:
        raise ReportError(str(error)) from None
    if output is None:
        folder = os.path.dirname(default)
        try:
            files.make_dirs(folder)
        except (OSError, tf.errors.OpError) as error:
            raise ReportError('%s cannot be made: %s' % (folder, error)) from None
    return logdir, page_path, png_path


def _page() -> Any:
    try:
        from slimguard.report import page
    except ImportError as error:
        raise ReportError(
            "the page is made with Jinja2 (%s); install it with: pip install 'jinja2>=3.0'" % error
        ) from None
    return page


def _warn(data: ReportData, no_charts: str) -> None:
    """Prints the page's notes on what is missing to stderr."""
    if data.broken or not data.has_record:
        terminal.complain(report_data.told(data))
    for note in [*data.notes, *([no_charts] if no_charts else [])]:
        terminal.complain(note)


def _file(path: files.Path, name: str) -> str:
    if not path:
        raise ReportError('%s is empty; expected the path of a file' % name)
    path = files.as_path(path, name)
    if files.is_dir(path):
        example = os.path.join(path, 'report.png' if name == 'png' else 'report.html')
        raise ReportError('%s is a directory; expected a file, such as %s' % (path, example))
    return path


def _write(path: str, content: bytes) -> None:
    """Writes a file, and says on stdout where it is."""
    try:
        if _is_device(path):
            sys.stdout.flush()
            with open(path, 'ab') as stream:  # 'a': with a shell's `>>` the output goes to the end
                stream.write(content)
            return
        files.write_atomically(path, content)
    except (OSError, tf.errors.OpError) as error:
        folder = os.path.dirname(path)
        why = error if files.is_dir(folder) else 'there is no directory %s' % folder
        raise ReportError('%s cannot be written: %s' % (path, why)) from None
    terminal.say(path)


def _is_device(path: str) -> bool:
    """Whether to write into `path` instead of replacing it: a device, a FIFO, our own stdout."""
    is_ours = path in ('/dev/stdout', '/dev/stderr')  # even if a shell redirects it to a file
    return is_ours or os.path.exists(path) and not os.path.isfile(path)
