"""What is gone of TensorFlow 1 for good, and what replaced it.

A module of tf.contrib that is gone can be imported, as a `Placeholder`, which raises once it is
used: many a script imports more than it needs.
"""

import functools
import importlib
import types
from typing import Any, List, Tuple

from slimguard.unedited.tf1_table import TABLE

_ADDONS = ', in the package tensorflow-addons, whose last version is for TensorFlow 2.15'

# What replaces a package, or a name in one; it also replaces all names below it.
GONE = {
    'tf.contrib': 'slimguard gives what tf-slim and TensorFlow kept of it, and not this',
    'tf.contrib.bayesflow': 'use the package tensorflow-probability',
    'tf.contrib.checkpoint': 'use tf.train.Checkpoint and tf.train.CheckpointManager',
    'tf.contrib.cluster_resolver': 'use tf.distribute.cluster_resolver',
    'tf.contrib.copy_graph': 'use tf.import_graph_def',
    'tf.contrib.crf': 'use tfa.text.crf_log_likelihood' + _ADDONS,
    'tf.contrib.cudnn_rnn': 'use tf.keras.layers.LSTM and GRU, which use cuDNN',
    'tf.contrib.data': 'use tf.data and tf.data.experimental',
    'tf.contrib.deprecated': 'use tf.summary.scalar, histogram, image and audio',
    'tf.contrib.distribute': 'use tf.distribute',
    'tf.contrib.distributions': 'use tfp.distributions, in the package tensorflow-probability',
    'tf.contrib.eager': 'use tf.compat.v2, which is eager by itself',
    'tf.contrib.estimator': 'tf.estimator, which took it up, left TensorFlow in 2.16',
    'tf.contrib.feature_column': 'use tf.feature_column',
    'tf.contrib.gan': 'use the package tensorflow-gan',
    'tf.contrib.image': 'use tfa.image' + _ADDONS,
    'tf.contrib.keras': 'use tf.keras',
    'tf.contrib.layers': 'for feature columns use tf.feature_column, for embeddings '
    'tf.nn.safe_embedding_lookup_sparse, for the rest tf.keras.layers',
    'tf.contrib.learn': 'use slim.learning or tf.train.MonitoredTrainingSession; tf.estimator, '
    'which followed it, left TensorFlow in 2.16',
    'tf.contrib.legacy_seq2seq': 'use tfa.seq2seq' + _ADDONS,
    'tf.contrib.lookup': 'use tf.lookup',
    'tf.contrib.mixed_precision': 'use tf.mixed_precision',
    'tf.contrib.nn': 'use tf.nn',
    'tf.contrib.opt': 'use tfa.optimizers' + _ADDONS,
    'tf.contrib.optimizer_v2': 'use tf.keras.optimizers',
    'tf.contrib.predictor': 'use tf.saved_model.load',
    'tf.contrib.quantize': 'use the package tensorflow-model-optimization',
    'tf.contrib.resampler': 'use tfa.image.resampler' + _ADDONS,
    'tf.contrib.rnn': 'use tf.nn.rnn_cell, or tfa.rnn' + _ADDONS,
    'tf.contrib.saved_model': 'use tf.keras.models.save_model and load_model',
    'tf.contrib.seq2seq': 'use tfa.seq2seq' + _ADDONS,
    'tf.contrib.stateless': 'use tf.random.stateless_normal, stateless_uniform and so on',
    'tf.contrib.summary': 'use tf.summary, or tf.compat.v2.summary',
    'tf.contrib.tensorboard': 'use tensorboard.plugins, in the package tensorboard',
    'tf.contrib.tensorrt': 'use tf.compat.v2.experimental.tensorrt',
    'tf.contrib.tpu': 'use tf.tpu, or tf.compat.v2.distribute.TPUStrategy',
    'tf.contrib.training.HParams': 'use an argparse.Namespace or a dataclass',
    'tf.contrib.training.bucket_by_sequence_length': 'use tf.data.experimental of the same name',
    'tf.contrib.training.python.training.hparam': 'use an argparse.Namespace or a dataclass',
    'tf.contrib.training': 'use tf.data',
    'tf.estimator': 'it left TensorFlow in 2.16; use slim.learning or '
    'tf.train.MonitoredTrainingSession, or install TensorFlow 2.15',
    'tf.examples': 'the tutorials left with their MNIST reader; use tf.keras.datasets',
    'tf.models': 'the models are a repository of their own, github.com/tensorflow/models',
}


def explain(name: str) -> str:
    """The reason why a name of TensorFlow 1 is missing, and its replacement."""
    ancestor = name
    while ancestor and ancestor not in GONE:
        ancestor = ancestor.rpartition('.')[0]
    if not ancestor:
        return "module 'tensorflow' has no attribute %r" % name.partition('.')[2]
    remedy = GONE[ancestor]
    if name.split('.')[1] == 'contrib':
        remedy = 'tf.contrib was dropped in TensorFlow 2; ' + remedy
    version = importlib.import_module('tensorflow').__version__
    return 'TensorFlow %s has no %s: %s' % (version, name, remedy)


def can_be_imported(name: str) -> bool:
    """Whether a missing name can be imported as a placeholder.

    True below tf.contrib. In a package whose present places are known, true only for names below a
    folder ``python``, where tf.contrib's packages had their files.
    """
    parts = name.split('.')
    if len(parts) < 3 or parts[1] != 'contrib' or parts[-1].startswith('_'):
        return False
    return not TABLE.get('.'.join(parts[:3])) or name in GONE or 'python' in parts[3:]


@functools.lru_cache(maxsize=None)
def placeholder(name: str) -> 'Placeholder':
    """The placeholder that is imported under a name that is gone."""
    return Placeholder(name)


class Placeholder(types.ModuleType):
    """Something of tf.contrib that is gone, imported. Raises AttributeError once it is used."""

    def __init__(self, name: str):
        super().__init__(name.replace('tf', 'tensorflow', 1))
        self._slimguard_name = name

    def __getattr__(self, name: str) -> Any:
        if name == '__all__':
            return []
        raise AttributeError(explain(self._slimguard_name + '.' + name))

    def __dir__(self) -> List[str]:
        return []

    # It may stand for a function, or for a class that the script calls, derives from, or asks for.

    def __call__(self, *args, **kwargs) -> Any:
        raise AttributeError(explain(self._slimguard_name))

    def __mro_entries__(self, bases: Tuple[Any, ...]) -> Any:
        raise AttributeError(explain(self._slimguard_name))

    def __instancecheck__(self, instance: Any) -> bool:
        raise AttributeError(explain(self._slimguard_name))
