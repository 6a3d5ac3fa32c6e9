"""A notebook's kernel: a real one, in a process of its own."""

import re

from jupyter_client import KernelManager

from tests.helpers.children import environment

_COLORS = re.compile(r'\x1b\[[0-9;]*m')
_SECONDS = 900


class Shown:
    """The output of a cell.

    Attributes:
      text: its stdout and stderr.
      error: the name of the error that ended it, or ''.
      traceback: the traceback as the notebook shows it.
    """

    def __init__(self):
        self.text, self.error, self.traceback = '', '', ''


class Kernel:
    """A kernel of the Python that runs the tests.

    Args:
      folder: where it keeps its files.
    """

    def __init__(self, folder):
        variables = {'IPYTHONDIR': str(folder), 'JUPYTER_RUNTIME_DIR': str(folder)}
        self._manager = KernelManager(kernel_name='python3')
        self._manager.start_kernel(env=dict(environment(), **variables), cwd=str(folder))
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_SECONDS)

    def run(self, code, interrupt_at=None):
        """Runs a cell to its end. It is interrupted once, when it has printed `interrupt_at`."""
        shown = Shown()

        def show(message):
            nonlocal interrupt_at
            content = message['content']
            if message['msg_type'] == 'stream':
                shown.text += content['text']
            elif message['msg_type'] == 'error':
                shown.error = content['ename']
                shown.traceback = _COLORS.sub('', '\n'.join(content['traceback']))
            if interrupt_at is not None and interrupt_at in shown.text:
                interrupt_at = None
                self._manager.interrupt_kernel()

        # With stop_on_error, the kernel would not run a cell that arrives soon after an error.
        self._client.execute_interactive(
            code, timeout=_SECONDS, output_hook=show, stop_on_error=False
        )
        return shown

    def close(self):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
