"""``slimguard incidents``: the record of a training, for people and for programs.

The JSON document has

* `logdir` and `record`, two paths;
* `unreadable_lines`, how many lines of the record are no incident;
* `groups`, each with `cause`, `reason`, `count`, `first_step`, `last_step`, `actions` (how often
  each was taken), `not_examined` (how many incidents were not examined, and only have the same
  symptom), and `what_to_do` (sentences);
* `incidents`, the oldest first, each with its `number` in the log and on the page, and the
  attributes of `slimguard.Incident`.
"""

import argparse
import sys
from typing import Any, Dict, List

from slimguard.command import arguments
from slimguard.command.documents import print_document, refuse
from slimguard.incidents import advice, incident_groups, record_file
from slimguard.incidents.incident import replay_hint, report_hint
from slimguard.incidents.incident_groups import Group
from slimguard.incidents.record_file import Record
from slimguard.system import terminal

NO_RECORD_CODE = 1
# More lines help no reader, and a damaged record may have thousands.
_MOST_OF_A_LINE, _MOST_LINES, _MOST_GROUPS = 900, 30, 20


def incidents(options: argparse.Namespace) -> None:
    """Prints the record of `options.folder`."""
    arguments.require_logdir(options.folder, options.json)
    try:
        record = record_file.read_record(options.folder)
    except FileNotFoundError as error:
        refuse(str(error), options.json, NO_RECORD_CODE)
    except OSError as error:
        refuse('the record of incidents cannot be read: %s' % error, options.json)
    if record.is_foreign:
        refuse(record_file.FOREIGN % record_file.path_in(options.folder), options.json)
    if options.json:
        print_document(_document(options.folder, record))
    else:
        _print(options.folder, record, options.all)


def _document(folder: str, record: Record) -> Dict[str, Any]:
    groups = incident_groups.grouped(record.incidents)
    return {
        'logdir': folder,
        'record': record_file.path_in(folder),
        'unreadable_lines': record.unreadable,
        'groups': [_group_document(group) for group in groups],
        'incidents': [dict(number=n, **it.to_dict()) for n, it in enumerate(record.incidents, 1)],
    }


def _group_document(group: Group) -> Dict[str, Any]:
    return {
        'cause': group.first.cause,
        'reason': group.first.reason,
        'count': group.count,
        'first_step': group.first_step,
        'last_step': group.last_step,
        'actions': group.actions,
        'not_examined': group.not_examined,
        'what_to_do': advice.what_to_do(group.first),
    }


def _print(folder: str, record: Record, all_of_them: bool) -> None:
    if record.incidents and all_of_them:
        terminal.print_table(record_file.table(record.incidents))
    elif record.incidents:
        _print_groups(record)
    else:
        terminal.say('no incident is on record in ' + folder)
    for note in record.notes:
        terminal.complain(note)
    if record.incidents and not all_of_them:
        print()
        terminal.say(report_hint(folder))


def _print_groups(record: Record) -> None:
    groups = incident_groups.grouped(record.incidents)
    count, kinds = len(record.incidents), len(groups)
    head = '%d incident%s on record' % (count, '' if count == 1 else 's')
    starts = incident_groups.starts_of(record.incidents)[-1]
    head += ' in %d starts of the training' % starts if starts > 1 else ''
    if kinds < count:
        head += ', of %d kind%s; --all lists each of them' % (kinds, '' if kinds == 1 else 's')
    terminal.say(head)
    for group in groups[:_MOST_GROUPS]:
        print()
        for line in _lines_of(group):
            print(terminal.encodable(terminal.visible(line, _MOST_OF_A_LINE), sys.stdout))
    if kinds > _MOST_GROUPS:
        print()
        terminal.say('and %d more kinds; --all lists each incident' % (kinds - _MOST_GROUPS))


def _lines_of(group: Group) -> List[str]:
    """A group as lines: how many incidents and when, then the first one's cause and facts."""
    first = group.first
    told = [_when(group) + ': ' + _actions(group) if any(group.actions) else _when(group)]
    if group.not_examined:
        told[0] += '; ' + incident_groups.NOT_EXAMINED % group.not_examined
    told += ['  ' + line for line in (first.diagnosis or '').splitlines()[:_MOST_LINES]]
    told.append('  ' + first.reason_in_short)
    known = [record_file.when(first.time)]
    known += [] if first.step is None else ['step %d' % first.step]
    known += [] if first.loss is None else ['loss %g' % first.loss]
    known += [] if first.worker is None else ['on ' + first.worker]
    known += [] if first.held else ['the update was written']
    known += [] if first.restored is None else ['restored ' + first.restored]
    known += [] if first.learning_rate is None else ['learning rate x%g' % first.learning_rate]
    one = group.count == 1
    told.append('  %s%s' % ('' if one else 'the first: ', ', '.join(filter(None, known))))
    to_do = advice.what_to_do(first)
    told += ['  what to do: ' + to_do] if to_do else []
    if group.bundle is not None:
        told.append('  ' + replay_hint(group.bundle))
    return told


def _when(group: Group) -> str:
    times = 'once' if group.count == 1 else '%d times' % group.count
    if group.first_step is None:
        return times
    if group.first_step == group.last_step:
        return '%s, at global step %d' % (times, group.first_step)
    return '%s, from global step %d to %s' % (times, group.first_step, group.last_step)


def _actions(group: Group) -> str:
    if len(group.actions) == 1:
        return next(iter(group.actions))
    return ', '.join('%s %d' % (action or 'unknown', n) for action, n in group.actions.items())
