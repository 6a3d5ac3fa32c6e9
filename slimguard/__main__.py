"""The command line: ``python -m slimguard``, and the console script ``slimguard``.

Imports no TensorFlow before it has something to run or a checkpoint to read, so that help, usage
errors and the record of incidents come at once.
"""

import argparse
import atexit
import contextlib
import math
import os
import sys
from typing import List, Optional, Sequence, Tuple

from slimguard.incidents import policies
from slimguard.system import files, logdirs, terminal

_RUN_USAGE = (
    '%(prog)s [OPTION ...] script.py [ARGUMENT ...]\n'
    '       %(prog)s [OPTION ...] -m module [ARGUMENT ...]'
)
_TAKE_A_VALUE = frozenset(
    '--on_nan --max_loss --logdir --capture --max_bundles --preemption_seconds'.split()
)
# The exit code where a question cannot be answered, as argparse has it for usage errors.
_CANNOT_KNOW = 2


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Obeys a command line, by default that of the process."""
    ours, script = _split(sys.argv[1:] if arguments is None else arguments)
    with terminal.streams():
        parser, run_parser = _parsers()
        options = parser.parse_args(ours)
        if options.command != 'run':
            if 'folder' in options:
                options.folder = _folder(options.folder, parser)
            _COMMANDS[options.command](options)
            return
        _check_script(script, run_parser)
    lent = contextlib.ExitStack()
    try:
        _run(options, script, lent)
    finally:
        if arguments is not None:  # or else this process ends, its threads and exit handlers last
            lent.close()


def parse_policy(text: str) -> List[policies.Policy]:
    """The policies that a name, or a fallback chain such as ``skip:5,raise``, stands for.

    Raises:
      argparse.ArgumentTypeError: for an unknown name, or a number that does not fit.
    """
    try:
        return [policies.parse_fallback(each.strip()) for each in text.split(',')]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_positive(text: str) -> float:
    """A positive finite number.

    Raises:
      argparse.ArgumentTypeError: for anything else.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError('expected a positive finite number, not %r' % text)
    return number


class _Parser(argparse.ArgumentParser):
    """Shows what it was given so that it cannot speak to the terminal."""

    def print_help(self, file=None):
        # argparse would say nothing of a stdout that cannot be written.
        print(self.format_help(), end='', file=file)

    def error(self, message):
        argparse.ArgumentParser.error(self, terminal.visible(message))


def _parsers() -> Tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    parser = _Parser(prog='slimguard', description='Guards TF-Slim training against NaN and Inf.')
    commands = parser.add_subparsers(dest='command', metavar='COMMAND', required=True)
    run = commands.add_parser(
        'run',
        help='run a script unchanged, guarded',
        usage=_RUN_USAGE % {'prog': 'slimguard run'},
        description='Runs a script as python would, with what optimizers of TensorFlow 1 write '
        'guarded: a NaN or Inf changes no weight and reaches no checkpoint. What follows the '
        'script is for the script.',
        allow_abbrev=False,
    )
    run.add_argument(
        '--on_nan',
        metavar='POLICY',
        type=parse_policy,
        help='what happens after a bad step: raise (the default), stop, skip, rollback, or several '
        'in turn, such as skip:5,rollback:3x0.5,raise; there each rollback halves the learning '
        'rate',
    )
    run.add_argument(
        '--max_loss',
        metavar='X',
        type=parse_positive,
        help='a loss above this is a bad step too; a training that explodes may be ruined before, '
        'which rollback:3x0.3 is for',
    )
    run.add_argument(
        '--logdir',
        metavar='DIR',
        help='where the record of incidents and the bundles go; by default where the script keeps '
        'its checkpoints or summaries, or, where it has neither yet, slimguard-logs',
    )
    run.add_argument(
        '--capture',
        choices=('yes', 'no'),
        default='yes',
        help='whether to find out what made a step bad, and to write it into a bundle; yes by '
        'default',
    )
    bundles = 'how many bundles there may be in one folder; 5 by default'
    run.add_argument('--max_bundles', metavar='N', type=_positive, default=5, help=bundles)
    seconds = 'how long a step may take to end after SIGTERM or Ctrl-C; 10 by default'
    run.add_argument(
        '--preemption_seconds', metavar='X', type=parse_positive, default=10.0, help=seconds
    )
    run.add_argument(
        '--tf1',
        action='store_true',
        help='on TensorFlow 2, give the script the names of TensorFlow 1, tf.contrib.slim included',
    )
    commands.add_parser(
        'doctor', help='say which TensorFlow and which tf-slim there are, and what was put right'
    )
    checkpoints = commands.add_parser(
        'checkpoints',
        help='say which checkpoints of a logdir are whole and finite',
        description='Opens every checkpoint in a logdir and says which are whole and finite, from '
        'the oldest to the newest. Exits with 1 if there are some and a restart would not resume '
        'from a good one, with --repair also if there are none, and with 2 if LOGDIR is no logdir '
        'or cannot be read.',
    )
    checkpoints.add_argument('folder', metavar='LOGDIR')
    checkpoints.add_argument(
        '--repair',
        action='store_true',
        help="make TensorFlow's state file name the newest good checkpoint; no other file is "
        'touched',
    )
    incidents = commands.add_parser(
        'incidents',
        help='print the record of incidents of a logdir',
        description='Prints the record of incidents that slimguard keeps in '
        'LOGDIR/slimguard/incidents.jsonl. Exits with 0 if it was read, 1 if LOGDIR has none, and '
        '2 if it cannot be read or LOGDIR is no logdir.',
    )
    incidents.add_argument('folder', metavar='LOGDIR')
    replay = commands.add_parser(
        'replay',
        help='run a bad step again, out of its bundle',
        description='Runs a bad step again, out of the bundle that a training left in '
        'LOGDIR/slimguard, writes nothing, and says what made it bad. Of a LOGDIR, lists the '
        'bundles. Exits with 0 if the failure came back, 1 if not, 2 if nothing was run to its '
        'end. A bundle holds a graph, and a graph is code: replay only bundles that you trust.',
    )
    replay.add_argument('folder', metavar='BUNDLE')
    replay.add_argument(
        '--shell',
        action='store_true',
        help='open a Python prompt with the session, the graph and the feed',
    )
    replay.add_argument(
        '--without',
        metavar='ROW',
        type=_row,
        help='run it once more without this row of the batch, and say whether the rest is clean',
    )
    report = commands.add_parser(
        'report',
        help='make a page to look at: the loss, the incidents, what made them bad',
        description='Writes one HTML page with the loss and its incidents, and for those that have '
        'a bundle the diagnosis, the ranges along the step and the samples of the batch. It asks '
        'for nothing from the network. Exits with 1 if the record of incidents cannot be read, '
        'which the page then says, and 2 if nothing can be written or LOGDIR is no logdir.',
    )
    report.add_argument('folder', metavar='LOGDIR')
    report.add_argument(
        '--output', metavar='FILE', help='where it goes; default: LOGDIR/slimguard/report.html'
    )
    report.add_argument(
        '--png', metavar='FILE', help='the same as a picture, too; needs the extra "report"'
    )
    return parser, run


def _row(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError('expected a row of the batch, 0 or more, not %r' % text)
    return int(text)


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError('expected a whole number, 1 or more, not %r' % text)
    return int(text)


def _split(arguments: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Splits a command line into what is for us, and the script (or ``-m module``) with its own.

    Not left to argparse, which looks for our options among the script's. Ours have `_` between
    words where they were given with `-`.
    """
    end = len(arguments)
    if list(arguments[:1]) == ['run']:
        end = 1
        while end < len(arguments) and arguments[end].startswith('-') and arguments[end] != '-m':
            end += 2 if _underscored(arguments[end]) in _TAKE_A_VALUE else 1
    ours, script = list(arguments[:end]), list(arguments[end:])
    options = ours.index('--') if '--' in ours else len(ours)
    return [_underscored(option) for option in ours[:options]] + ours[options:], script


def _underscored(argument: str) -> str:
    if not argument.startswith('--'):
        return argument
    name, equals, value = argument[2:].partition('=')
    return '--' + name.replace('-', '_') + equals + value


def _folder(given: str, parser: argparse.ArgumentParser) -> str:
    """The absolute path of a directory that is there."""
    try:
        folder = files.as_path(given, 'the directory')
    except ValueError as error:
        parser.error(str(error))
    # A remote one is looked for by TensorFlow, once that is imported.
    if not files.is_remote(folder) and not files.is_dir(folder):
        found = os.path.lexists(folder)
        parser.error(('%r is no directory' if found else 'there is no directory %r') % given)
    return folder


def _check_script(script: Sequence[str], parser: argparse.ArgumentParser) -> None:
    if not script or script == ['-m']:
        parser.error('name a script to run, or a module after -m')
    if script[0] != '-m' and not os.path.isfile(script[0]):
        parser.error('there is no file %r to run' % script[0])


def _run(options: argparse.Namespace, script: Sequence[str], lent: contextlib.ExitStack) -> None:
    """Runs a script; `lent` takes from a caller who goes on what the script had been given."""
    from slimguard.scripts import run, tf1_names

    if options.tf1:
        lent.callback(tf1_names.uninstall)
        tf1_names.install()
    # These import TensorFlow, which the names of version 1 have to come before.
    from slimguard.scripts import ending, script_watcher
    from slimguard.scripts import instrumentation as instrumentations

    is_the_callers = instrumentations.is_active()
    instrumentation = instrumentations.instrument(
        options.on_nan,
        options.max_loss,
        options.logdir,
        capture=options.capture == 'yes',
        max_bundles=options.max_bundles,
        preemption_seconds=options.preemption_seconds,
    )
    if not is_the_callers:
        lent.callback(instrumentation.uninstrument)
    # Said once all else is, a traceback among it.
    atexit.register(ending.Ending(instrumentation.sessions.seen, os.getpid()).say)
    if options.tf1 or tf1_names.is_native():
        tf1_names.let_flags_be_redefined()
    try:
        if script[0] == '-m':
            run.run_module(script[1], script[2:])
        else:
            run.run_script(script[0], script[1:])
    except Exception as error:
        if not script_watcher.is_stop(error):
            raise
        # 'stop' has ended a loop that asks nobody: all is said, and it is no failure.


def _checkpoints(options: argparse.Namespace) -> None:
    _require_logdir(options.folder)
    import tensorflow as tf

    from slimguard.checkpoints import restart

    try:
        seen = restart.look(options.folder, options.repair)
    except (OSError, tf.errors.OpError) as error:
        _refuse('%s: %s' % (options.folder, getattr(error, 'message', error)))
    # Out of the try: what goes wrong with stdout is no fault of the logdir.
    for sentence in seen.before:
        terminal.say(sentence)
    if len(seen.rows) > 1:
        terminal.print_table(seen.rows)
    for sentence in seen.after:
        terminal.say(sentence)
    if not seen.is_good:
        sys.exit(1)


def _incidents(options: argparse.Namespace) -> None:
    _require_logdir(options.folder)
    from slimguard.incidents import record_path, record_reader, record_table

    try:
        record = record_reader.read_record(options.folder)
    except FileNotFoundError:
        terminal.say(_NO_RECORD % options.folder)
        sys.exit(1)
    except OSError as error:
        _refuse('the record of incidents cannot be read: %s' % error)
    if record.incidents:
        terminal.print_table(record_table.table(record.incidents))
    elif not record.is_foreign:
        terminal.say('no incident is on record in ' + options.folder)
    for note in record.notes:
        terminal.complain(note)
    if record.is_foreign:
        path = record_path.path_in(options.folder)
        _refuse('%s is no record of slimguard, or a damaged one: it has no incident' % path)


_NO_RECORD = (
    'there is no record of incidents in %s: no guard of slimguard was to write there, or else it '
    'was deleted. A guarded training makes one, empty, when it begins; a NanLossHook needs '
    'logdir=... for that.'
)


def _require_logdir(folder: str) -> None:
    """Refuses a directory in which no training has left anything."""
    missing = logdirs.what_is_missing(folder)
    if missing is not None:
        _refuse(missing)


def _refuse(why: str) -> None:
    terminal.complain(why)
    sys.exit(_CANNOT_KNOW)


def _replay(options: argparse.Namespace) -> None:
    from slimguard.diagnosis import replay

    sys.exit(replay.main(options.folder, options.shell, options.without))


def _report(options: argparse.Namespace) -> None:
    _require_logdir(options.folder)
    from slimguard.report import report

    sys.exit(report.write(options.folder, options.output, options.png))


def _doctor(options: argparse.Namespace) -> None:
    from slimguard import compat

    print(compat.report())


_COMMANDS = {
    'checkpoints': _checkpoints,
    'doctor': _doctor,
    'incidents': _incidents,
    'replay': _replay,
    'report': _report,
}


if __name__ == '__main__':
    main()
