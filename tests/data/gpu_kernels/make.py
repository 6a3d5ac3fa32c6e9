"""Lists the GPU kernels of a TensorFlow, for tests on machines without a GPU.

    python tests/data/gpu_kernels/make.py        # in an environment with such a TensorFlow

A TensorFlow that was built for GPUs registers its kernels where there is no GPU as well: the wheel
`tensorflow` for Linux (from 2.12 on), and `tensorflow-gpu` 1.15.5. The wheel `tensorflow-cpu`, with
which the tests are run, has none. So the table of each is kept beside this file, as
`tensorflow-VERSION.txt`; :mod:`tests.helpers.gpu_kernels` reads it.
"""

import os
import sys

import tensorflow as tf
from tensorflow.python.framework import kernels

# `DEFAULT` stands for any device; such a kernel keeps its numbers in the host's memory.
DEVICES = ('GPU', 'DEFAULT')


def registered():
    """Yields for each kernel its op, the dtypes of each attribute, and the host arguments."""
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type in DEVICES and not kernel.label:
            dtypes = {
                each.name: frozenset(tf.as_dtype(t).name for t in each.allowed_values.list.type)
                for each in kernel.constraint
            }
            yield kernel.op, dtypes, frozenset(kernel.host_memory_arg)


def joined(found):
    """Joins kernels that differ only in the dtypes of one attribute."""
    found = list(found)
    for attribute in sorted({name for _, dtypes, _ in found for name in dtypes}):
        groups = {}
        for op, dtypes, host in found:
            others = frozenset((n, d) for n, d in dtypes.items() if n != attribute)
            groups.setdefault((op, others, host, attribute in dtypes), []).append(dtypes)
        found = []
        for (op, others, host, has_it), alike in groups.items():
            dtypes = dict(others)
            if has_it:
                dtypes[attribute] = frozenset().union(*(each[attribute] for each in alike))
            found.append((op, dtypes, host))
    return found


def line_of(op, dtypes, host):
    words = ['%s=%s' % (name, ','.join(sorted(dtypes[name]))) for name in sorted(dtypes)]
    return ' '.join([op] + words + (['host=' + ','.join(sorted(host))] if host else []))


def main():
    lines = sorted(line_of(*kernel) for kernel in joined(registered()))
    if len(lines) < 500:
        sys.exit('TensorFlow %s has no kernels for GPUs' % tf.__version__)
    path = os.path.join(os.path.dirname(__file__), 'tensorflow-%s.txt' % tf.__version__)
    with open(path, 'w') as file:
        file.write('# Kernels for GPUs of TensorFlow %s: op, dtypes of its ' % tf.__version__)
        file.write('attributes, arguments in the memory\n# of the host. Made by make.py.\n')
        file.write(''.join(line + '\n' for line in lines))


if __name__ == '__main__':
    main()
