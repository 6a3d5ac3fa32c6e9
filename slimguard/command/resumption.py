"""``slimguard checkpoints``: the checkpoints, and which of them a restart resumes from.

The JSON document has

* `logdir`; and `repair`, a sentence on what ``--repair`` did, or null;
* `checkpoints`, from the oldest to the newest, each with `name`, `path`, `step`, `time` (seconds
  since the epoch), `bytes`, `is_good`, `damage` (a sentence, or null if it is whole) and
  `non_finite` (names of variables);
* `restart`, with the restarts of `slimguard` and of plain `tensorflow`: `resumes_from` (a path or
  null), `is_good` and `said`; or null if there is nothing to resume from;
* `is_good`, whether both resume from a good checkpoint, or there is none.
"""

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, Dict, Optional

from slimguard.command import arguments
from slimguard.command.documents import print_document, refuse
from slimguard.system import terminal

if TYPE_CHECKING:  # it imports TensorFlow
    from slimguard.checkpoints.checkpoint_files import Checkpoint
    from slimguard.checkpoints.checkpoint_reader import Inspection
    from slimguard.checkpoints.restart import Fate, Seen


def checkpoints(options: argparse.Namespace) -> None:
    """Prints the checkpoints in `options.folder`, after a repair if the options ask for one."""
    arguments.require_logdir(options.folder, options.json)
    arguments.require_tensorflow(options.json)
    import tensorflow as tf

    from slimguard.checkpoints import restart

    try:
        seen = restart.look(options.folder, options.repair)
    except (OSError, tf.errors.OpError) as error:
        why = '%s: %s' % (options.folder, getattr(error, 'message', error))
        refuse(why, options.json)
    # Outside the try: an error of stdout is no fault of the logdir.
    if options.json:
        print_document(_document(options.folder, seen))
    else:
        _print(options.folder, seen)
    if not seen.is_good:
        sys.exit(1)


def _print(folder: str, seen: 'Seen') -> None:
    for sentence in seen.before:
        terminal.say(sentence)
    if len(seen.rows) > 1:
        terminal.print_table(seen.rows)
    for sentence in seen.after:
        terminal.say(sentence)
    ours, plain = seen.fates
    if ours is not None and plain is not None and ours.is_good and not plain.is_good:
        terminal.say(_TO_REPAIR + shlex.quote(folder))


_TO_REPAIR = 'to have TensorFlow resume as slimguard: python -m slimguard checkpoints --repair '


def _document(folder: str, seen: 'Seen') -> Dict[str, Any]:
    ours, plain = seen.fates
    return {
        'logdir': folder,
        'repair': ' '.join(seen.before) or None,
        'checkpoints': [_checkpoint_document(*each) for each in seen.inspected],
        'restart': {'slimguard': _fate_document(ours), 'tensorflow': _fate_document(plain)},
        'is_good': seen.is_good,
    }


def _checkpoint_document(found: 'Checkpoint', inspection: 'Inspection') -> Dict[str, Any]:
    return {
        'name': os.path.basename(found.path),
        'path': found.path,
        'step': inspection.step,
        'time': found.time,
        'bytes': found.size,
        'is_good': inspection.is_good,
        'damage': inspection.damage,
        'non_finite': inspection.non_finite,
    }


def _fate_document(fate: Optional['Fate']) -> Optional[Dict[str, Any]]:
    if fate is None:
        return None
    return {'resumes_from': fate.path, 'is_good': fate.is_good, 'said': fate.said}
