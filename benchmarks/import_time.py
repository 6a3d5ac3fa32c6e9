"""What importing slimguard adds to importing TensorFlow and tf-slim, in milliseconds.

    python benchmarks/import_time.py

Each run is a fresh process that imports TensorFlow and tf-slim first, and then times slimguard
with everything that it loads lazily. The bound to hold is 50 ms. The first run compiles and is not
counted.
"""

import os
import statistics
import subprocess
import sys

import measure

RUNS = 7
SCRIPT = """
import time
import tensorflow, tf_slim
start = time.perf_counter()
import slimguard
for name in slimguard.__all__:
    getattr(slimguard, name)
print((time.perf_counter() - start) * 1e3)
"""


def main():
    measure.require_arguments(__doc__)
    environment = dict(os.environ)
    environment.pop('PYTHONDONTWRITEBYTECODE', None)
    times = []
    for _ in range(1 + RUNS):
        run = subprocess.run(
            [sys.executable, '-c', SCRIPT], stdout=subprocess.PIPE, check=True, env=environment
        )
        times.append(float(run.stdout))
    del times[0]
    print('| adds, median of %d | smallest | largest |' % RUNS)
    print('|---|---|---|')
    print('| %.1f ms | %.1f ms | %.1f ms |' % (statistics.median(times), min(times), max(times)))


if __name__ == '__main__':
    main()
