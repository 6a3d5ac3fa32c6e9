"""``slimguard doctor``: what is installed, which names were put back, and what to install.

The JSON document has `versions`, by the name of the package; `put_back`, each with `name` and
`source`; and `missing`, each with `name`, `why` and `remedy`, a pip command where one helps.
"""

import argparse
import sys

from slimguard import compat
from slimguard.command.documents import print_document
from slimguard.system import terminal


def doctor(options: argparse.Namespace) -> None:
    """Prints the report on what is installed; exits with 1 if anything is missing."""
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
