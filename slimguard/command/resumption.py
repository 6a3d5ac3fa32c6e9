"""``slimguard checkpoints``: the checkpoints, and which of them a restart resumes from.

The JSON document has

* `logdir`;
* `repair`, a sentence on what ``--repair`` did, or null;
* `checkpoints`, from the oldest to the newest, each with `name`, `path`, `step`, `time` (seconds
  since the epoch), `bytes`, `is_good`, `damage` (a sentence, or null if it is whole) and
  `non_finite` (names of variables);
* `restart`, with a restart of `slimguard` and one of plain `tensorflow`, each with `resumes_from`
  (a path or null), `is_good` and `said`, or null if there is nothing to resume from;
* `is_good`, whether both resume from a good checkpoint; without any checkpoint, it is false only
  after ``--repair``.
"""

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from slimguard.command import arguments
from slimguard.command.documents import print_document, refuse
from slimguard.incidents import record_file
from slimguard.system import terminal

if TYPE_CHECKING:  # this module imports TensorFlow
    from slimguard.checkpoints.checkpoint_files import Checkpoint
    from slimguard.checkpoints.checkpoint_reader import Inspection
    from slimguard.checkpoints.repair import Fate, Seen


def checkpoints(options: argparse.Namespace) -> None:
    """Prints the checkpoints in `options.folder`, after a repair if the options ask for one."""
    arguments.require_logdir(options.folder, options.json)
    arguments.require_tensorflow(options.json)
    import tensorflow as tf

    from slimguard.checkpoints import repair

    try:
        seen = repair.look(options.folder, options.repair)
    except (OSError, tf.errors.OpError) as error:
        why = '%s: %s' % (options.folder, getattr(error, 'message', error))
        refuse(why, options.json)
    # Outside the try: an error of stdout says nothing about the logdir.
    if options.json:
        print_document(_document(options.folder, seen))
    else:
        _print(options.folder, seen)
    if not seen.is_good:
        sys.exit(1)


def _print(folder: str, seen: 'Seen') -> None:
    if seen.repaired is not None:
        terminal.say(seen.repaired)
    if seen.checkpoints:
        rows = [_row_of(*each) for each in seen.checkpoints]
        terminal.print_table([('checkpoint', 'step', 'written', 'size', ''), *rows])
    ours, plain = seen.ours, seen.plain
    if ours is None or plain is None:
        terminal.say('no checkpoints in ' + folder)
    elif ours == plain:
        terminal.say('a restart ' + ours.said)
    else:
        terminal.say('a guarded restart ' + ours.said)
        terminal.say('plain TensorFlow ' + plain.said)
        if ours.is_good and not plain.is_good:
            terminal.say(_TO_REPAIR + shlex.quote(folder))


def _row_of(found: 'Checkpoint', inspection: 'Inspection') -> Tuple[str, ...]:
    return (
        os.path.basename(found.path),
        '' if inspection.step is None else str(inspection.step),
        record_file.when(found.time),
        '%.1f MB' % (found.size / 1e6) if found.size >= 1e5 else '%.1f kB' % (found.size / 1e3),
        str(inspection),
    )


_TO_REPAIR = (
    'to have TensorFlow resume as slimguard does: python -m slimguard checkpoints --repair '
)


def _document(folder: str, seen: 'Seen') -> Dict[str, Any]:
    return {
        'logdir': folder,
        'repair': seen.repaired,
        'checkpoints': [_checkpoint_document(*each) for each in seen.checkpoints],
        'restart': {
            'slimguard': _fate_document(seen.ours),
            'tensorflow': _fate_document(seen.plain),
        },
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
