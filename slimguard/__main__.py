"""The command line: ``python -m slimguard``, and the console script ``slimguard``.

Imports no TensorFlow before it has something to run, so that help and usage errors come at once.
"""

import argparse
import math
import os
import sys
from typing import List, Optional, Sequence, Tuple

from slimguard import policies

_RUN_USAGE = (
    '%(prog)s [--on_nan=POLICY] [--max_loss=X] [--tf1] script.py [ARGUMENT ...]\n'
    '       %(prog)s [--on_nan=POLICY] [--max_loss=X] [--tf1] -m module [ARGUMENT ...]'
)
_TAKE_A_VALUE = ('--on_nan', '--max_loss')


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Obeys a command line, by default that of the process."""
    ours, script = _split(sys.argv[1:] if arguments is None else arguments)
    parser, run_parser = _parsers()
    options = parser.parse_args(ours)
    if options.command == 'run':
        _check_script(script, run_parser)
        _run(options, script)
    elif options.command == 'doctor':
        _doctor()
    else:
        if not os.path.isdir(options.folder) and '://' not in options.folder:
            parser.error('there is no directory %r' % options.folder)
        if options.command == 'checkpoints':
            _checkpoints(options.folder, options.repair)
        elif options.command == 'incidents':
            _incidents(options.folder)
        elif options.command == 'report':
            _report(options)
        else:
            _replay(options)


def parse_policy(text: str) -> List[policies.Policy]:
    """The policies that a name, or a ladder such as ``skip:5,raise``, stands for.

    Raises:
      argparse.ArgumentTypeError: for an unknown name, or a number that does not fit.
    """
    try:
        return [_parse_rung(rung.strip()) for rung in text.split(',')]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_rung(text: str) -> policies.Policy:
    name, colon, number = text.partition(':')
    (policy,) = policies.rungs_of(name)
    if not colon:
        return policy
    if not vars(policy):
        raise ValueError('%r: %s takes no number' % (text, name))
    if not number.isdigit():
        raise ValueError('%r: expected a number after the colon, as in %s:5' % (text, name))
    return type(policy)(int(number))


def parse_max_loss(text: str) -> float:
    """A positive finite number.

    Raises:
      argparse.ArgumentTypeError: for anything else.
    """
    try:
        max_loss = float(text)
    except ValueError:
        max_loss = math.nan
    if not 0 < max_loss < math.inf:
        raise argparse.ArgumentTypeError('expected a positive finite number, not %r' % text)
    return max_loss


def _parsers() -> Tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(
        prog='slimguard', description='Guards TF-Slim training against NaN and Inf.'
    )
    commands = parser.add_subparsers(dest='command', metavar='COMMAND', required=True)
    run = commands.add_parser(
        'run',
        help='run a script unchanged, guarded',
        usage=_RUN_USAGE % {'prog': 'slimguard run'},
        description='Runs a script as python would, with the training functions of slim guarded: '
        'a NaN or Inf changes no weight and reaches no checkpoint. What follows the script is for '
        'the script.',
        allow_abbrev=False,
    )
    run.add_argument(
        '--on_nan',
        metavar='POLICY',
        type=parse_policy,
        help='what happens after a bad step: raise (the default), stop, skip, rollback, or several '
        'in turn, such as skip:5,rollback:3,raise',
    )
    run.add_argument(
        '--max_loss',
        metavar='X',
        type=parse_max_loss,
        help='a loss above this is a bad step too',
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
        'the oldest to the newest. Exits with 1 if the one that a restart would resume from is '
        'not.',
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
        description='Prints the '
        'record of incidents that slimguard keeps in LOGDIR/slimguard/incidents.jsonl.',
    )
    incidents.add_argument('folder', metavar='LOGDIR')
    replay = commands.add_parser(
        'replay',
        help='run a bad step again, out of its bundle',
        description='Runs a bad step again, out of the bundle that a training left in '
        'LOGDIR/slimguard, writes nothing, and says what made it bad. Exits with 0 if the failure '
        'came back, 1 if not, 2 if the bundle is damaged or cannot run here. A bundle holds a '
        'graph, and a graph is code: replay only bundles that you trust.',
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
        'for nothing from the network.',
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


def _split(arguments: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Splits a command line into what is for us, and the script (or ``-m module``) with its own.

    Not left to argparse, which looks for our options among the script's.
    """
    if list(arguments[:1]) != ['run']:
        return list(arguments), []
    end = 1
    while end < len(arguments) and arguments[end].startswith('-') and arguments[end] != '-m':
        end += 2 if arguments[end] in _TAKE_A_VALUE else 1
    return list(arguments[:end]), list(arguments[end:])


def _check_script(script: Sequence[str], parser: argparse.ArgumentParser) -> None:
    if not script or script == ['-m']:
        parser.error('name a script to run, or a module after -m')
    if script[0] != '-m' and not os.path.isfile(script[0]):
        parser.error('there is no file %r to run' % script[0])


def _run(options: argparse.Namespace, script: Sequence[str]) -> None:
    import slimguard
    from slimguard import legacy, run

    if options.tf1:
        legacy.install()
    slimguard.instrument(on_nan=options.on_nan, max_loss=options.max_loss)
    if options.tf1 or legacy.is_native():
        legacy.let_flags_be_redefined()
    if script[0] == '-m':
        run.run_module(script[1], script[2:])
    else:
        run.run_script(script[0], script[1:])


def _checkpoints(logdir: str, repair: bool) -> None:
    from slimguard import checkpoint, journal, state_file
    from slimguard import repair as repairs

    if repair:
        print(repairs.repair(logdir).said or 'nothing to repair')
    rows = [('checkpoint', 'step', 'written', 'size', '')]
    findings = {}
    for found in checkpoint.checkpoints_in(logdir):
        finding = findings[found.path] = checkpoint.read(found.path)
        rows.append(
            (
                os.path.basename(found.path),
                '' if finding.step is None else str(finding.step),
                journal.when(found.time),
                '%.1f MB' % (found.size / 1e6),
                str(finding),
            )
        )
    if len(rows) == 1:
        print('no checkpoints')
        return
    _print_table(rows)
    named = state_file.newest_in(logdir)
    if named is None:
        print('a restart begins anew: no state file names a checkpoint')
        return
    finding = findings.get(named) or checkpoint.read(named)
    print('a restart resumes from %s, which is %s' % (os.path.basename(named), finding))
    if not finding.is_good:
        sys.exit(1)


def _incidents(logdir: str) -> None:
    from slimguard import journal

    try:
        records, torn = journal.read(logdir)
    except FileNotFoundError as error:
        print(error)
        return
    _print_table(journal.table(records))
    if torn:
        print('%d lines could not be read; a kill can tear one' % torn)


def _replay(options: argparse.Namespace) -> None:
    from slimguard import replay

    sys.exit(replay.main(options.folder, options.shell, options.without))


def _report(options: argparse.Namespace) -> None:
    from slimguard import report

    sys.exit(report.main(options.folder, options.output, options.png))


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def _doctor() -> None:
    from slimguard import compat

    print(compat.report())


if __name__ == '__main__':
    main()
