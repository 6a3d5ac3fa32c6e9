"""Code that nobody edits: what it calls is replaced by what is guarded.

The files:

    instrumentation.py           instrument(): puts guarded functions in the place of slim's
    tf1_names.py                 the names of TensorFlow 1, for scripts on TensorFlow 2
    tf1_table.py                 where they are today
    tf1_gone.py                  what is gone of them, and what replaced it
    moving_average_optimizer.py  tf.contrib.opt.MovingAverageOptimizer
    numpy1_names.py              the names that numpy has dropped
    run.py                       runs a script as python would
"""
