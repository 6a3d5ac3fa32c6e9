"""One JSON document on stdout, for programs.

Every JSON parser can read it: a number that is not finite is the string 'nan', 'inf' or '-inf', and
a character that UTF-8 cannot encode is an escape. If a command cannot answer, the document has the
key `error`, a sentence.
"""

import json
import math
import sys
from typing import Any, Dict, NoReturn

from slimguard.system import terminal

# The exit code of a command that cannot answer; argparse uses the same one for usage errors.
CANNOT_KNOW = 2


def print_document(document: Dict[str, Any]) -> None:
    """Prints a document."""
    print(json.dumps(_plain(document), indent=2, allow_nan=False))


def refuse(why: str, as_json: bool = False, exit_code: int = CANNOT_KNOW) -> NoReturn:
    """Ends the command with a sentence on stderr, or in a JSON document on stdout."""
    if as_json:
        print_document({'error': why})
    else:
        terminal.complain(why)
    sys.exit(exit_code)


def _plain(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value).encode('utf-8', 'backslashreplace').decode('utf-8')
