"""The command line, in this process."""

from slimguard.__main__ import main


def run(*arguments):
    """Runs a command here. Returns its exit code."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as left:
        return left.code
    return 0
