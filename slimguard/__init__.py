"""slimguard guards TF-Slim training against NaN and Inf: nothing non-finite is ever written.

    import slimguard

    train_op = slimguard.create_train_op(total_loss, optimizer)
    slimguard.train(train_op, logdir, number_of_steps=1000, on_nan='skip')

Importing it also makes the installed tf-slim work on the installed TensorFlow
(:mod:`slimguard.compat`). The names below are loaded when they are first used, so that the command
line can answer before TensorFlow is imported.
"""

from typing import TYPE_CHECKING, List

from slimguard import compat as _compat

__version__ = '0.1.0'

_compat.on_tensorflow_import()


# For type checkers and editors. Python imports each of these when its name is first used.
if TYPE_CHECKING:
    from slimguard import compat as compat
    from slimguard import hooks as hooks
    from slimguard import learning as learning
    from slimguard.checkpoints.checkpoint_reader import (
        latest_finite_checkpoint as latest_finite_checkpoint,
    )
    from slimguard.checkpoints.finite_saver import FiniteSaver as FiniteSaver
    from slimguard.gate import guard as guard
    from slimguard.hooks import NanLossHook as NanLossHook
    from slimguard.incidents.incident import Incident as Incident
    from slimguard.incidents.nan_loss_error import NanLossError as NanLossError
    from slimguard.incidents.policies import Raise as Raise
    from slimguard.incidents.policies import Rollback as Rollback
    from slimguard.incidents.policies import Skip as Skip
    from slimguard.incidents.policies import Stop as Stop
    from slimguard.incidents.record_file import read_incidents as read_incidents
    from slimguard.incidents.spike import Spike as Spike
    from slimguard.learning import create_train_op as create_train_op
    from slimguard.learning import train as train
    from slimguard.training.watch import watch as watch
    from slimguard.unedited.instrumentation import instrument as instrument

# Where each public name lives.
_HOMES = {
    'FiniteSaver': 'checkpoints.finite_saver',
    'Incident': 'incidents.incident',
    'NanLossError': 'incidents.nan_loss_error',
    'NanLossHook': 'hooks',
    'Raise': 'incidents.policies',
    'Rollback': 'incidents.policies',
    'Skip': 'incidents.policies',
    'Spike': 'incidents.spike',
    'Stop': 'incidents.policies',
    'create_train_op': 'learning',
    'guard': 'gate',
    'instrument': 'unedited.instrumentation',
    'latest_finite_checkpoint': 'checkpoints.checkpoint_reader',
    'read_incidents': 'incidents.record_file',
    'train': 'learning',
    'watch': 'training.watch',
}
_MODULES = ('compat', 'hooks', 'learning')
_NEED_NO_TENSORFLOW = frozenset('compat Incident Raise Rollback Skip Stop read_incidents'.split())

if not TYPE_CHECKING:  # or type checkers would accept every name
    __all__ = sorted((*_MODULES, *_HOMES))

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _NEED_NO_TENSORFLOW and name in (*_MODULES, *_HOMES):
            _compat.require_tensorflow()
        if name in _MODULES:
            return importlib.import_module('slimguard.' + name)
        if name in _HOMES:
            return getattr(importlib.import_module('slimguard.' + _HOMES[name]), name)
        raise AttributeError('module %r has no attribute %r' % (__name__, name))

    def __dir__() -> List[str]:
        return sorted(__all__ + ['__doc__', '__file__', '__name__', '__path__', '__version__'])
