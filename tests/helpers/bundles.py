"""Bundles that tests write."""

import time

from slimguard import gate
from slimguard.diagnosis import bundle
from slimguard.diagnosis.diagnose import diagnose
from slimguard.incidents.incident import Incident


def incident_of(failed, step=None):
    finding = gate.explain(failed.labels)
    return Incident(
        step=failed.steps if step is None else step,
        loss=float(failed.loss),
        reason=finding.reason,
        tensors=finding.tensors,
        strategy='hook',
        time=time.time(),
    )


def write(failed, logdir, step=None, trouble=None, **kwargs):
    bad_step = failed.bad_step._replace(incident=incident_of(failed, step))
    diagnosis = diagnose(bad_step)
    diagnosis = diagnosis._replace(trouble=trouble or diagnosis.trouble)
    return bundle.write(str(logdir), bad_step, diagnosis, **kwargs)


def variables_of(it):
    """The values of all variables in a bundle that was read, by the names of their ops."""
    names = list(it.exported.names['variables'])
    return {name: value for part in it.variables(names) for name, value in part.items()}
