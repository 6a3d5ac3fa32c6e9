"""Chooses the incident that a report opens with."""

from typing import Dict, List, NamedTuple, Optional, Sequence

from slimguard.incidents.incident_groups import kind_of
from slimguard.report.bundle_view import AnyBundle, BundleView
from slimguard.report.incident_view import IncidentView

_ENDED = ('raise', 'stop', 'error')


class Lead(NamedTuple):
    """The incident that matters.

    Attributes:
      heading: why it is this one.
      incident: as the record has it, or else its bundle.
      bundle: its bundle, if that can be read.
      alike: a bundle of another incident of its kind, where it has none itself.
    """

    heading: str
    incident: IncidentView
    bundle: Optional[BundleView]
    alike: Optional[BundleView]


class Kind(NamedTuple):
    """Incidents whose reasons differ in numbers at most, the oldest first."""

    members: List[IncidentView]


def lead_of(incidents: Sequence[IncidentView], bundles: Sequence[AnyBundle]) -> Optional[Lead]:
    """The incident that ended the training, or else the first of its kind; None without any.

    Of several kinds it is that of most incidents. Of one without a bundle little is to be shown:
    the first that has one comes before it.
    """
    readable = [bundle for bundle in bundles if isinstance(bundle, BundleView)]
    if not incidents:
        return _of_bundles(readable)
    with_bundles = bundles_by_number(incidents, readable)
    ended = [incident for incident in incidents if incident.action in _ENDED]
    if ended:
        is_last = ended[-1].number == incidents[-1].number
        heading = 'What ended the training' if is_last else 'What ended a run of the training'
        return _lead(heading, ended[-1], incidents, with_bundles)
    members = kinds_of(incidents)[0].members
    first = next((i for i in members if i.number in with_bundles), members[0])
    return _lead(_heading_of(first, members), first, incidents, with_bundles)


def _heading_of(first: IncidentView, members: Sequence[IncidentView]) -> str:
    if len(members) == 1:
        return 'What happened'
    which = 'The first' if first is members[0] else 'The first that was kept'
    return '%s of %d alike' % (which, len(members))


def _of_bundles(readable: Sequence[BundleView]) -> Optional[Lead]:
    if not readable:
        return None
    return Lead('The last bad step that was kept', readable[-1].incident, readable[-1], None)


def _lead(
    heading: str,
    incident: IncidentView,
    incidents: Sequence[IncidentView],
    with_bundles: Dict[int, BundleView],
) -> Lead:
    bundle = with_bundles.get(incident.number)
    kind = kind_of(incident.reason)
    alike = [i for i in incidents if i.number in with_bundles and kind_of(i.reason) == kind]
    other = with_bundles[alike[-1].number] if alike and bundle is None else None
    return Lead(heading, incident, bundle, other)


def kinds_of(incidents: Sequence[IncidentView]) -> List[Kind]:
    """The kinds of incidents, those of most incidents first."""
    members: Dict[str, List[IncidentView]] = {}
    for incident in incidents:
        members.setdefault(kind_of(incident.reason), []).append(incident)
    return [Kind(alike) for alike in sorted(members.values(), key=len, reverse=True)]


def bundles_by_number(
    incidents: Sequence[IncidentView], bundles: Sequence[AnyBundle]
) -> Dict[int, BundleView]:
    """The bundles by the number of their incident.

    A later bundle may get the name of one that was removed: the newest incident has it.
    """
    by_name = {bundle.name: bundle for bundle in bundles if isinstance(bundle, BundleView)}
    newest = {i.bundle: i.number for i in incidents if i.bundle in by_name}
    return {number: by_name[name] for name, number in newest.items()}
