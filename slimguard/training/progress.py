"""A progress bar for a training, on the terminal, below the log lines."""

import contextlib
import logging
import sys
import time
import warnings
from typing import Any, Iterator, Optional

import tensorflow.compat.v1 as tf1

from slimguard.system.user_code import is_notebook

_SECONDS_BETWEEN = 0.1

_LOGGERS = ('slimguard', 'tensorflow', 'absl', None)


@contextlib.contextmanager
def progress_bar(wanted: bool, number_of_steps: Optional[int]) -> Iterator[Optional['Progress']]:
    """Yields a `Progress` during a training; None if not `wanted` or without a terminal.

    Args:
      wanted: whether to show a bar.
      number_of_steps: the global step at which the training ends, or None.

    Raises:
      ImportError: if tqdm, which draws the bar, is not installed.
    """
    if not wanted:
        yield None
        return
    make_bar = _bar_class()
    if not is_notebook() and not sys.stderr.isatty():
        yield None
        return
    progress = Progress(make_bar, number_of_steps)
    try:
        with contextlib.ExitStack() as stack:
            tf1.logging.get_verbosity()  # makes TensorFlow create its handler
            for name in _LOGGERS:
                stack.enter_context(_logging_above(make_bar, logging.getLogger(name)))
            yield progress
    finally:
        progress.close()


def _bar_class() -> Any:
    """tqdm's class of bars for a terminal or a notebook (with or without widgets).

    Raises:
      ImportError: if tqdm is not installed.
    """
    try:
        with warnings.catch_warnings():
            # A notebook without ipywidgets gets a bar of text, without a warning.
            warnings.simplefilter('ignore')
            import tqdm.auto
    except ImportError as error:
        raise ImportError(
            'progress=True needs the package tqdm; install it with: pip install tqdm'
        ) from error
    return tqdm.auto.tqdm


class Progress:
    """Shows the global step, the loss, the steps per second and the number of incidents.

    Args:
      make_bar: tqdm's class of bars.
      number_of_steps: the global step at which the bar is full, or None.
    """

    def __init__(self, make_bar, number_of_steps: Optional[int]):
        self._make_bar = make_bar
        self._number_of_steps = number_of_steps
        self._bar: Any = None
        self._next = 0.0

    def is_due(self) -> bool:
        """Whether it is time to draw the bar; drawing takes about as long as a small step."""
        return time.time() >= self._next

    def show(self, step: int, loss, incidents: int) -> None:
        """Draws the bar.

        Args:
          step: the global step.
          loss: the loss of the last good step, or None.
          incidents: the number of incidents so far.
        """
        if self._bar is None:
            # `mininterval=0`: `is_due` decides when to draw, not tqdm.
            self._bar = self._make_bar(
                total=self._number_of_steps,
                initial=step,
                file=sys.stderr,
                unit='step',
                dynamic_ncols=True,
                mininterval=0,
                miniters=0,
            )
        words = ['loss -' if loss is None else 'loss %.4g' % loss]
        words += ['%d incident%s' % (incidents, '' if incidents == 1 else 's')]
        self._bar.set_postfix_str(', '.join(words), refresh=False)
        self._bar.update(step - self._bar.n)
        self._next = time.time() + _SECONDS_BETWEEN

    def close(self) -> None:
        """Leaves the bar as it is, and the cursor below it."""
        if self._bar is not None:
            self._bar.close()


@contextlib.contextmanager
def _logging_above(make_bar, logger: logging.Logger) -> Iterator[None]:
    handlers = list(logger.handlers)
    logger.handlers[:] = [_AboveBar(make_bar, handler) for handler in handlers]
    try:
        yield
    finally:
        logger.handlers[:] = handlers


class _AboveBar(logging.Handler):
    """Clears the bar, lets another handler write its line, and redraws the bar below."""

    def __init__(self, make_bar, handler: logging.Handler):
        logging.Handler.__init__(self, handler.level)
        self._make_bar = make_bar
        self._handler = handler

    def emit(self, record):
        with self._make_bar.external_write_mode():
            self._handler.handle(record)
