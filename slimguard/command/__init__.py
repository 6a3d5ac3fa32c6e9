"""The command line, less what `slimguard.__main__` does itself: options, and what commands print.

The files:

    parser.py      the commands and their options; tells a script's arguments from ours
    arguments.py   reads the value of an option, and says what was expected
    records.py     `incidents`: the record, in groups, as a table or as JSON
    resumption.py  `checkpoints`: which there are, and what a restart makes of them
    doctor.py      `doctor`: what is installed, and what to install
    documents.py   one JSON document on stdout, for programs
    needs.py       what a command needs of TensorFlow, or a sentence on what is missing

No file imports TensorFlow before it has something to run or a checkpoint to read.
"""
