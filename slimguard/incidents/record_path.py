"""Where the record of incidents of a logdir is."""

import os

from slimguard.system import files


def path_in(logdir: files.Path) -> str:
    """The path of the record in a logdir."""
    return os.path.join(files.as_path(logdir), 'slimguard', 'incidents.jsonl')
