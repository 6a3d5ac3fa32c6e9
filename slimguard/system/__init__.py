"""The operating system: files, directories, the terminal. Does not deal with training.

The files:

    files.py      paths as users give them, and files that are replaced atomically
    logdirs.py    whether a directory is the log directory of a training
    texts.py      makes all characters of a text visible, and cuts it
    terminal.py   prints such text
    user_code.py  the user's files, their frames in a traceback, the cells of a notebook
    numbers.py    whether a value is a number; a bool is not
    signals.py    passes SIGTERM and Ctrl-C to the trainings of a process, and to other ranks
    log.py        the logger that all messages go through
    memory.py     how much memory is free
"""
