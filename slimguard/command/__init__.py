"""The parts of the command line: options, and what commands print. `slimguard.__main__` runs them.

The files:

    parser.py      the commands and their options; tells a script's arguments from ours
    arguments.py   reads options, and checks that a logdir and TensorFlow are there
    records.py     `incidents`: the record, in groups, as a table or as JSON
    resumption.py  `checkpoints`: the checkpoints, and which of them a restart resumes from
    documents.py   one JSON document on stdout, for programs

No command imports TensorFlow before it has something to run or a checkpoint to read.
"""
