"""The commands and their options; splits a command line into our part and the script's."""

import argparse
import difflib
import itertools
import os
import re
import shlex
from typing import FrozenSet, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from slimguard.command import arguments

_RUN_USAGE = (
    'slimguard run [OPTION ...] script.py [ARGUMENT ...]\n'
    '       slimguard run [OPTION ...] -m module [ARGUMENT ...]'
)
# Options that no other program is likely to have.
_OUR_WORDS = frozenset(['--on_nan', '--spike', '--tf1'])
# Options that a script may have too, but hardly together with one of _OUR_WORDS.
_BESIDE = frozenset(['--max_loss', '--max_bundles', '--preemption_seconds', '--capture'])
_EXAMPLES = """examples:
  slimguard run --on_nan=skip train.py --batch_size=32    options of the script come after it
  slimguard run --tf1 --on_nan=skip:5,rollback:3x0.1,raise train_tf1.py
  slimguard incidents logs                                what happened
  slimguard report logs                                   the same as a page

"slimguard COMMAND --help" has the options of a command; docs/command-line.md in the repository says
more. In every option - and _ are alike: --max_loss is --max-loss."""
_LOGDIR = (
    'the folder of the record, often that of the checkpoints; the line "to see what happened" at '
    "the end of a training's output names it"
)
_JSON = 'print one JSON document, and nothing else; its keys stay the same from version to version'


class Parsers(NamedTuple):
    """The parsers of a command line.

    Attributes:
      all: the parser of all commands.
      by_command: the parser of each command.
      with_a_value: the options of `run` that take a value.
    """

    all: argparse.ArgumentParser
    by_command: Mapping[str, argparse.ArgumentParser]
    with_a_value: FrozenSet[str]

    @property
    def run(self) -> argparse.ArgumentParser:
        """The parser of `run`."""
        return self.by_command['run']

    def parse(self, ours: Sequence[str]) -> argparse.Namespace:
        """Reads our part of a command line, as `split` returns it; shows the usage on an error."""
        command = next((each for each in ours if not each.startswith('-')), None)
        if command is not None and command not in self.by_command:
            self.all.error(_no_command(command, self.by_command))
        parser = self.all if command is None else self.by_command[command]
        names = re.findall('--[a-z]\\w*', parser.format_help())
        # Checked before argparse, which would complain of a missing LOGDIR instead.
        given = (each for each in itertools.takewhile('--'.__ne__, ours) if each[:2] == '--')
        unknown = [each for each in given if not any(n.startswith(_name_of(each)) for n in names)]
        options = argparse.Namespace()
        if not unknown:
            options, unknown = self.all.parse_known_args(ours)
        if unknown:
            said = 'unrecognized arguments: %s' % ' '.join(unknown)
            near = difflib.get_close_matches(_name_of(unknown[0]), names, 1, 0.75)
            if near:
                said += '; did you mean %s?' % near[0]
            elif parser is self.run:
                said += '; options of the script come after the script'
            elif not unknown[0].startswith('-'):
                said += '; a path with spaces needs quotes'
            parser.error(said)
        return options


def make(version: str) -> Parsers:
    """Makes the parsers; `version` is slimguard's."""
    parser = argparse.ArgumentParser(
        prog='slimguard',
        description='Guards training with TensorFlow 1 graphs and sessions against NaN and Inf.',
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--version', action='version', version='slimguard ' + version)
    commands = parser.add_subparsers(dest='command', metavar='COMMAND')
    run = commands.add_parser(
        'run',
        help='run a script unchanged, guarded',
        usage=_RUN_USAGE,
        description='Runs a script as python would, and guards the updates of TensorFlow 1 '
        'optimizers: a NaN or Inf changes no weight and reaches no checkpoint. The arguments after '
        'the script are for the script. The last lines of output have the command that shows what '
        'happened.',
        allow_abbrev=False,
    )
    with_a_value = _add_run_options(run)
    _add_doctor(commands)
    _add_checkpoints(commands)
    _add_incidents(commands)
    _add_replay(commands)
    _add_report(commands)
    return Parsers(parser, commands.choices, with_a_value)


def split(given: Sequence[str], with_a_value: FrozenSet[str]) -> Tuple[List[str], List[str]]:
    """Splits a command line into our part, and the script (or ``-m module``) with its arguments.

    argparse cannot do this: it would look for our options among the script's. In the options that
    are returned, each `-` between words is a `_`.
    """
    end = len(given)
    if list(given[:1]) == ['run']:
        end = 1
        while end < len(given) and given[end].startswith('-') and given[end] != '-m':
            end += 2 if _underscored(given[end]) in with_a_value else 1
    ours, script = list(given[:end]), list(given[end:])
    options = ours.index('--') if '--' in ours else len(ours)
    return [_underscored(option) for option in ours[:options]] + ours[options:], script


def strays(ours: Sequence[str], script: Sequence[str]) -> List[str]:
    """The script's arguments that look as if they were meant for `run`.

    These are options that `run` itself did not get, and that scripts seldom have.
    """
    own = {_name_of(argument) for argument in ours}
    theirs = list(script[1:])
    theirs = theirs[: theirs.index('--')] if '--' in theirs else theirs
    is_ours = any(_name_of(each) in _OUR_WORDS - own for each in theirs)
    words = (_OUR_WORDS | _BESIDE if is_ours else _OUR_WORDS) - own
    return [each for each in theirs if _name_of(each) in words]


def check_script(script: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Ends the command with a usage error if there is no such script."""
    if not script or script == ['-m']:
        parser.error('name a script to run, or a module after -m')
    if script[0] == '-m' or os.path.isfile(script[0]):
        return
    if not os.path.isdir(script[0]):
        parser.error('there is no file %r to run' % script[0])
    if not os.path.isfile(os.path.join(script[0], '__main__.py')):
        parser.error('the folder %r has no __main__.py to run' % script[0])


def _no_command(given: str, commands: Iterable[str]) -> str:
    """The error for an unknown command; it suggests the most similar one."""
    if os.path.exists(given) and not difflib.get_close_matches(given, commands):
        run = 'slimguard run ' + shlex.quote(given)
        return 'there is no command %r; to run a script: %s' % (given, run)
    near = difflib.get_close_matches(given, commands, 1)
    hint = 'did you mean %s?' % near[0] if near else 'the commands: ' + ', '.join(commands)
    return 'there is no command %r; %s' % (given, hint)


def _name_of(argument: str) -> str:
    return _underscored(argument).partition('=')[0]


def _underscored(argument: str) -> str:
    if not argument.startswith('--'):
        return argument
    name, equals, value = argument[2:].partition('=')
    return '--' + name.replace('-', '_') + equals + value


def _add_run_options(run: argparse.ArgumentParser) -> FrozenSet[str]:
    """Adds the options of `run`. Returns those that take a value."""
    with_a_value = [
        run.add_argument(
            '--on_nan',
            metavar='POLICY',
            type=arguments.policy,
            help='what happens after a bad step: raise (the default), stop, skip, rollback, or '
            'several in turn, such as skip:5,rollback:3x0.1,raise, where x0.1 divides the learning '
            'rate by ten at each rollback',
        ),
        run.add_argument(
            '--max_loss',
            metavar='X',
            type=arguments.positive,
            help='a step with a loss above X is a bad step, too. By then an explosion may have '
            'ruined the weights: rollback:3x0.1 goes back to earlier ones',
        ),
        run.add_argument(
            '--logdir',
            metavar='DIR',
            type=arguments.logdir,
            help='the folder for the record of bad steps and the bundles, folders from which '
            "replay runs a bad step again; by default the folder of the script's checkpoints or "
            'summaries, or a new folder in slimguard-logs if it has neither yet',
        ),
        run.add_argument(
            '--capture',
            choices=('yes', 'no'),
            default='yes',
            help='whether to look for the cause of a bad step, and to write a bundle; yes by '
            'default',
        ),
        run.add_argument(
            '--max_bundles',
            metavar='N',
            type=arguments.whole(1),
            default=5,
            help='keep at most N bundles in one folder; 5 by default',
        ),
        run.add_argument(
            '--preemption_seconds',
            metavar='X',
            type=arguments.positive,
            default=10.0,
            help='a step has X seconds to end after SIGTERM or Ctrl-C; 10 by default',
        ),
        run.add_argument(
            '--spike',
            metavar='MULTIPLES',
            type=arguments.spike,
            help='a step whose loss or gradient norm is this many times the median of the last '
            'good steps is a bad step, too: default, or some of '
            'loss=10,gradient_norm=100,window=100,warmup=20; without the option there is no limit',
        ),
        run.add_argument(
            '--history',
            metavar='N',
            type=arguments.whole(0),
            default=200,
            help='a bundle has the loss and the gradient norms of the last N steps; 200 by '
            'default, 0 for none',
        ),
    ]
    run.add_argument(
        '--quiet',
        action='store_true',
        help='log only errors, the checkpoint that is saved at the end, and the last lines, which '
        'say how the training went',
    )
    run.add_argument(
        '--tf1',
        action='store_true',
        help='on TensorFlow 2, give the script the names of TensorFlow 1, tf.contrib.slim included',
    )
    return frozenset(name for action in with_a_value for name in action.option_strings)


def _add_doctor(commands) -> None:
    doctor = commands.add_parser(
        'doctor',
        help='list the installed versions, the names that slimguard put back, and what to install',
        description='Lists the installed versions, the names of tf-slim that slimguard put back, '
        'and what is missing or cannot be imported, with the pip command that mends it. Exits with '
        '1 if anything is missing. Works without TensorFlow.',
    )
    doctor.add_argument('--json', action='store_true', help=_JSON)


def _add_checkpoints(commands) -> None:
    checkpoints = commands.add_parser(
        'checkpoints',
        help='say which checkpoints of a logdir are whole and finite',
        description='Opens every checkpoint in a logdir and says which are whole and finite, from '
        'the oldest to the newest. Exits with 1 if there are checkpoints and a restart would not '
        'resume from a good one, with --repair also if there are none, and with 2 if LOGDIR is no '
        'logdir or cannot be read.',
    )
    checkpoints.add_argument('folder', metavar='LOGDIR', help='the folder of the checkpoints')
    checkpoints.add_argument(
        '--repair',
        action='store_true',
        help="make TensorFlow's state file name the newest good checkpoint; if there is none, "
        'rename it to checkpoint.bad; no other file is touched',
    )
    checkpoints.add_argument('--json', action='store_true', help=_JSON)


def _add_incidents(commands) -> None:
    incidents = commands.add_parser(
        'incidents',
        help='print the record of incidents of a logdir',
        description='Prints the record of incidents (bad steps) that slimguard keeps in '
        'LOGDIR/slimguard/incidents.jsonl: for each kind of cause, how often it came, and the '
        'first incident in full. Exits with 0 if it read the record, 1 if LOGDIR has none, and 2 '
        'if it cannot read it or LOGDIR is not that of a training.',
    )
    incidents.add_argument('folder', metavar='LOGDIR', help=_LOGDIR)
    incidents.add_argument(
        '--all',
        action='store_true',
        help='print a table of all incidents, with their causes and the first bad tensors',
    )
    explained = '; help(slimguard.Incident) explains those of an incident, such as held'
    incidents.add_argument('--json', action='store_true', help=_JSON + explained)


def _add_replay(commands) -> None:
    replay = commands.add_parser(
        'replay',
        help='run a bad step again from its bundle',
        description='Runs a bad step again from the bundle that a training left in '
        'LOGDIR/slimguard, writes nothing, and says what made it bad. Given a LOGDIR, takes its '
        'newest bundle, and lists the others. Exits with 0 if the failure came back, 1 if not, 2 '
        'if the step could not run to its end. A bundle holds a graph, and a graph is code: '
        'replay only bundles that you trust.',
    )
    replay.add_argument(
        'folder',
        metavar='BUNDLE',
        help='the folder of a bad step, such as LOGDIR/slimguard/step-4; or a LOGDIR',
    )
    replay.add_argument(
        '--shell',
        action='store_true',
        help='open a Python prompt with the session, the graph and the feed',
    )
    replay.add_argument(
        '--without',
        metavar='ROW',
        type=arguments.whole(0),
        help='run it once more without this row of the batch, and say whether the rest is clean',
    )


def _add_report(commands) -> None:
    report = commands.add_parser(
        'report',
        help='make a page: the loss, the incidents and their causes',
        description='Writes one HTML page with the loss and its incidents (bad steps). If an '
        'incident has a bundle, a folder from which replay runs it again, the page shows the '
        'diagnosis, the ranges along the step and the samples of the batch. It loads nothing from '
        'the network. Charts need matplotlib; without it the page has words only. Exits '
        'with 0 if it wrote the page. Exits with 1 if there is neither a record of incidents nor a '
        'bundle; then it writes no page. Also exits with 1 if the record cannot be read; then the '
        'page says so. Exits with 2 if it cannot write the page or LOGDIR is no logdir.',
    )
    report.add_argument('folder', metavar='LOGDIR', help=_LOGDIR)
    report.add_argument('--open', action='store_true', help='open the page in your browser')
    report.add_argument(
        '--output', metavar='FILE', help='the file; default: LOGDIR/slimguard/report.html'
    )
    report.add_argument(
        '--png', metavar='FILE', help='also draw the loss and the first card as a picture'
    )
