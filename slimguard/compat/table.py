"""The table of names that tf-slim uses and some TensorFlow lacks, and what they stand for."""

from typing import NamedTuple, Tuple, Union


class Row(NamedTuple):
    """A name that tf-slim uses and some TensorFlow lacks."""

    module: str  # where tf-slim looks for it
    name: str
    # TensorFlow's public name; or Keras modules: the first installed one counts.
    home: Union[str, Tuple[str, ...]]

    @property
    def full_name(self) -> str:
        return self.module + '.' + self.name


# The v1 layers belong to Keras 2: the package tf-keras, and up to TensorFlow 2.15 also keras.
_NORMALIZATION = (
    'tf_keras.src.legacy_tf_layers.normalization',
    'keras.src.legacy_tf_layers.normalization',
)


LAYERS = (
    'tf_keras.api._v1.keras.__internal__.legacy.layers',
    'keras.api._v1.keras.__internal__.legacy.layers',
)


# The module and name of an enumeration that scripts take from tf.estimator. Since tf.estimator left
# TensorFlow, in 2.16, it has no public name; this private one is there from 1.15 to 2.21.
MODE_KEYS = 'tensorflow.python.saved_model.model_utils.mode_keys:EstimatorModeKeys'


_CONTROL = 'tensorflow.python.ops.control_flow_ops'
_SCOPE = 'tensorflow.python.ops.variable_scope'

# The first two columns are the private name, the last one is the public name of the same thing.
TABLE = (
    # tf-slim 1.0 and 1.1 look where TensorFlow 1.15 has the names; 2.13 and later have moved them.
    Row('tensorflow.python.framework.ops', 'IndexedSlices', 'tf.IndexedSlices'),
    Row('tensorflow.python.framework.ops', 'Tensor', 'tf.Tensor'),
    Row('tensorflow.python.layers.normalization', 'BatchNormalization', _NORMALIZATION),
    Row('tensorflow.python.layers.normalization', 'batch_normalization', _NORMALIZATION),
    Row('tensorflow.python.ops.array_ops', 'stack', 'tf.stack'),
    Row('tensorflow.python.ops.array_ops', 'unstack', 'tf.unstack'),
    Row(_CONTROL, 'Assert', 'tf.compat.v1.Assert'),
    Row(_CONTROL, 'case', 'tf.compat.v1.case'),
    Row(_CONTROL, 'cond', 'tf.compat.v1.cond'),
    Row(_CONTROL, 'while_loop', 'tf.compat.v1.while_loop'),
    Row(_SCOPE, 'disable_resource_variables', 'tf.compat.v1.disable_resource_variables'),
    Row(_SCOPE, 'enable_resource_variables', 'tf.compat.v1.enable_resource_variables'),
    Row(_SCOPE, 'resource_variables_enabled', 'tf.compat.v1.resource_variables_enabled'),
    Row(_SCOPE, 'variable', 'tf.compat.v1.Variable'),
    Row('tensorflow.python.ops.variables', 'VariableV1', 'tf.compat.v1.Variable'),
    # TensorFlow 2.16 and later look for tf.compat.v1.layers in Keras 3, which has none.
    Row('tensorflow.compat.v1', 'layers', LAYERS),
)
