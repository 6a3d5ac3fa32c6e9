"""A training as a page to look at: ``python -m slimguard report LOGDIR``.

The page holds the loss with the incidents marked, what was done at each, and for those that have a
bundle what made them bad, the ranges along the step and the samples of the batch. It is one file,
runs no script and asks for nothing; everything that comes from the run is escaped.
"""

import os
import sys
import tempfile
from typing import Optional

import tensorflow as tf

from slimguard import bundle, findings, page


class ReportError(Exception):
    """A report cannot be made; the message says why."""


def main(logdir: str, output: Optional[str] = None, png: Optional[str] = None) -> int:
    """Makes the report of a log directory.

    Args:
      logdir: the log directory of a training.
      output: the file of the page; by default slimguard/report.html in `logdir`.
      png: the file of the same as a picture, or None for no picture. Needs matplotlib.

    Returns:
      The exit code: 0, or 2 if something could not be written.
    """
    try:
        if output is None:
            output = os.path.join(_folder(logdir), 'report.html')
        draw = None if png is None else _poster()
        found = findings.gather(logdir)
        # A lone surrogate of somebody's JSON has no place in UTF-8.
        _write(output, page.render(found).encode('utf-8', 'backslashreplace'))
        print(output)
        if png is not None and draw is not None:
            _write(png, draw(found))
            print(png)
    except ReportError as error:
        print('slimguard: %s' % error, file=sys.stderr)
        return 2
    return 0


def _folder(logdir: str) -> str:
    folder = bundle.folder(logdir)
    try:
        tf.io.gfile.makedirs(folder)
    except (OSError, tf.errors.OpError) as error:
        raise ReportError('%s cannot be made: %s' % (folder, error)) from None
    return folder


def _poster():
    try:
        from slimguard import poster
    except ImportError as error:
        raise ReportError(
            "--png needs matplotlib (%s); install it with: pip install 'slimguard[report]'" % error
        ) from None
    return poster.draw


def _write(path: str, content: bytes) -> None:
    """Writes a file under a temporary name, and moves it into place."""
    try:
        if '://' in path:
            _write_remotely(path, content)
        else:
            _write_locally(os.path.abspath(path), content)
    except (OSError, tf.errors.OpError) as error:
        raise ReportError('%s cannot be written: %s' % (path, error)) from None


def _write_locally(path: str, content: bytes) -> None:
    number, making = tempfile.mkstemp(prefix='.making-', dir=os.path.dirname(path))
    try:
        with os.fdopen(number, 'wb') as file:
            file.write(content)
        os.chmod(making, 0o666 & ~_umask())
        os.replace(making, path)
    except BaseException:
        os.remove(making)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_remotely(path: str, content: bytes) -> None:
    making = '%s.making-%d' % (path, os.getpid())
    try:
        with tf.io.gfile.GFile(making, 'wb') as file:
            file.write(content)
        tf.io.gfile.rename(making, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(making):
            tf.io.gfile.remove(making)
        raise
