"""The command line: ``python -m slimguard``, and the console script ``slimguard``.

Imports no TensorFlow before it has something to run or a checkpoint to read. So help, usage errors
and the record of incidents come at once, even if no TensorFlow is installed.
"""

import argparse
import contextlib
import shlex
import sys
from typing import Optional, Sequence

import slimguard
from slimguard import compat
from slimguard.command import arguments as values
from slimguard.command import parser as parsers
from slimguard.command import records, resumption
from slimguard.command.documents import print_document, refuse
from slimguard.incidents import record_file
from slimguard.system import files, terminal


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs a command line; by default the one that the process was started with."""
    made = parsers.make(slimguard.__version__)
    given = sys.argv[1:] if arguments is None else arguments
    ours, script = parsers.split(given, made.with_a_value)
    with terminal.streams():
        options = made.parse(ours)
        if options.command is None:
            made.all.print_help()
            return
        if options.command != 'run':
            if 'folder' in options:
                as_json = getattr(options, 'json', False)
                parser = made.by_command[options.command]
                options.folder = values.folder(options.folder, parser, as_json)
            _COMMANDS[options.command](options)
            return
        parsers.check_script(script, made.run)
        values.find_tensorflow()
        for stray in parsers.strays(ours, script):
            terminal.complain(
                '%s came after the script and was given to it; options for slimguard come before '
                'the script' % stray
            )
    lent = contextlib.ExitStack()
    try:
        _run(options, script, lent)
    except KeyboardInterrupt as error:
        if arguments is None:
            from slimguard.unedited import run

            run.note_interrupt(error)
        raise
    finally:
        if arguments is not None:  # else the exit handlers still need the changes
            lent.close()


def _run(options: argparse.Namespace, script: Sequence[str], lent: contextlib.ExitStack) -> None:
    """Runs a script; closing `lent` undoes the changes to the process that the script needed."""
    from slimguard.unedited import run

    arguments = dict(
        on_nan=options.on_nan,
        max_loss=options.max_loss,
        logdir=options.logdir,
        capture=options.capture == 'yes',
        max_bundles=options.max_bundles,
        preemption_seconds=options.preemption_seconds,
        spike=options.spike,
        history=options.history,
    )
    instrumentation = run.RunOptions(options.tf1, options.quiet, arguments).guard(lent)
    if options.logdir is not None:
        values.require_file_system(options.logdir)
    from slimguard.unedited import script_session

    seen, script_files = instrumentation.sessions.seen, instrumentation.sessions.files
    is_module = script[0] == '-m'
    start = run.run_module if is_module else run.run_script
    what, *given = script[1:] if is_module else script
    try:
        script_session.end_at_stop(script_files, start, what, given)
    except SystemExit as error:
        seen.error = error if error.code else None
        raise
    except BaseException as error:
        seen.error = error
        raise


def _doctor(options: argparse.Namespace) -> None:
    """Prints what is installed; exits with 1 if anything is missing.

    The JSON document has `versions`, by the name of the package; `put_back`, each with `name` and
    `source`; and `missing`, each with `name`, `why` and `remedy`, a pip command where one helps.
    """
    with values.without_stderr():
        report = compat.report()
    if options.json:
        print_document(
            {
                'versions': dict(report.versions),
                'put_back': [each._asdict() for each in report.repairs],
                'missing': [each._asdict() for each in report.missing],
            }
        )
    else:
        for line in str(report).splitlines():
            print(terminal.visible(line))
    if report.missing:
        sys.exit(1)


def _replay(options: argparse.Namespace) -> None:
    values.require_tensorflow()
    from slimguard.diagnosis import replay

    sys.exit(replay.main(options.folder, options.shell, options.without))


def _report(options: argparse.Namespace) -> None:
    values.require_logdir(options.folder)
    values.require_tensorflow(besides=_INCIDENTS_NEEDS_NONE % shlex.quote(options.folder))
    from slimguard.diagnosis import bundle
    from slimguard.report import report

    if not files.exists(record_file.path_in(options.folder)) and not bundle.paths(options.folder):
        refuse(record_file.NO_RECORD % options.folder, exit_code=records.NO_RECORD_CODE)
    sys.exit(report.main(options.folder, options.output, options.png, options.open))


_INCIDENTS_NEEDS_NONE = ' To read the record without it: python -m slimguard incidents %s'

_COMMANDS = {
    'checkpoints': resumption.checkpoints,
    'doctor': _doctor,
    'incidents': records.incidents,
    'replay': _replay,
    'report': _report,
}


if __name__ == '__main__':
    main()
