"""tf.contrib.opt.MovingAverageOptimizer, which TensorFlow 2 dropped."""

from typing import Any, Dict, Optional

import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private


class MovingAverageOptimizer(tf1.train.Optimizer):
    """Trains as another optimizer does, and keeps moving averages of the variables it trains.

    A checkpoint of its `swapping_saver` has the average of a variable under the variable's own
    name, so an evaluation that restores the checkpoint with a plain saver uses the averages. To
    resume training from it, restore it by the `swapping_saver`, which swaps the values back:

        optimizer = tf.contrib.opt.MovingAverageOptimizer(tf.train.AdamOptimizer())
        train_op = slim.learning.create_train_op(loss, optimizer)
        slim.learning.train(train_op, logdir, saver=optimizer.swapping_saver())

    Args:
      opt: the optimizer that computes and applies gradients.
      average_decay, num_updates: as for `tf.train.ExponentialMovingAverage`.
      sequential_update: whether the averages wait for the step's update. Otherwise both are
        computed at the same time, and an average may miss the newest update.
    """

    def __init__(
        self,
        opt: tf1.train.Optimizer,
        average_decay: float = 0.9999,
        num_updates: Any = None,
        sequential_update: bool = True,
    ):
        super().__init__(use_locking=False, name='MovingAverageOptimizer')
        self._optimizer = opt
        self._averages = tf1.train.ExponentialMovingAverage(average_decay, num_updates=num_updates)
        self._sequential_update = sequential_update
        # Maps the op name of a variable to the op name of its average, and the other way round.
        self._swapped: Optional[Dict[str, str]] = None

    def compute_gradients(self, *args, **kwargs):
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads_and_vars = list(grads_and_vars)
        update = self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)
        variables = [variable for gradient, variable in grads_and_vars if gradient is not None]
        with tf1.control_dependencies([update] if self._sequential_update else []):
            averaging = self._averages.apply(variables)
        self._swapped = self._swapped or {}
        for variable in variables:
            average = self._averages.average(variable)
            self._swapped[variable.op.name] = average.op.name
            self._swapped[average.op.name] = variable.op.name
        return tf1.group(update, averaging, name='train_with_avg')

    # The slots belong to the wrapped optimizer.

    def get_slot(self, var, name):
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self):
        return self._optimizer.get_slot_names()

    def variables(self):
        return self._optimizer.variables()

    def swapping_saver(
        self, var_list: Any = None, name: str = 'swapping_saver', **kwargs
    ) -> tf1.train.Saver:
        """A Saver that swaps each trained variable and its moving average.

        Call it after `minimize` or `apply_gradients`, once all variables exist.

        Args:
          var_list: what to save, as for a Saver. Default: all global variables.
          name: the Saver's name.
          **kwargs: its other arguments.

        Raises:
          RuntimeError: if no gradients were applied yet.
          ValueError: if `var_list` has a variable without its average, or an average without its
            variable, or slices of a partitioned variable.
        """
        if self._swapped is None:
            raise RuntimeError(
                'swapping_saver() does not know yet which variables are trained; call minimize() '
                'or apply_gradients() first'
            )
        if var_list is None:
            var_list = tf1.global_variables()
        if not isinstance(var_list, dict):
            var_list = {variable.op.name: variable for variable in var_list}
        if any(tf_private.slice_info(variable) is not None for variable in var_list.values()):
            raise ValueError('swapping_saver() takes no slices of partitioned variables')
        there = {variable.op.name: variable for variable in var_list.values()}
        swapped = {key: self._other(value, there) for key, value in var_list.items()}
        return tf1.train.Saver(swapped, name=name, **kwargs)

    def _other(self, variable: Any, there: Dict[str, Any]) -> Any:
        """The variable to save in place of `variable`: the same one if it has no average."""
        assert self._swapped is not None
        name = variable.op.name
        other = self._swapped.get(name, name)
        if other not in there:
            raise ValueError(
                'the variables to save have %s and not %s, with which it changes places; give '
                'swapping_saver() both' % (name, other)
            )
        return there[other]
