"""slimguard guards TF-Slim training against NaN and Inf: nothing non-finite is ever written.

    import slimguard

    train_op = slimguard.create_train_op(total_loss, optimizer)
    slimguard.train(train_op, logdir, number_of_steps=1000, on_nan='skip')

Importing it also makes the installed tf-slim work on the installed TensorFlow
(:mod:`slimguard.compat`). The names below are loaded when they are first used, so that the command
line can answer before TensorFlow is imported.
"""

from slimguard import compat as _compat

__version__ = '0.1.0'

_compat.require_tensorflow()
_compat.on_slim_import()

# Where each public name lives.
_HOMES = {
    'FiniteSaver': 'saver',
    'Incident': 'incident',
    'NanLossError': 'incident',
    'NanLossHook': 'hooks',
    'Raise': 'policies',
    'Rollback': 'policies',
    'Skip': 'policies',
    'Stop': 'policies',
    'create_train_op': 'learning',
    'guard': 'gate',
    'instrument': 'instrumentation',
    'latest_finite_checkpoint': 'checkpoint',
    'train': 'learning',
    'watch': 'loop',
}
_MODULES = ('checkpoint', 'compat', 'gate', 'hooks', 'incident', 'learning', 'policies')

__all__ = sorted(_HOMES) + sorted(_MODULES)


def __getattr__(name):
    import importlib

    if name in _MODULES:
        return importlib.import_module('slimguard.' + name)
    if name in _HOMES:
        return getattr(importlib.import_module('slimguard.' + _HOMES[name]), name)
    raise AttributeError('module %r has no attribute %r' % (__name__, name))


def __dir__():
    return sorted(set(globals()) | set(__all__))
