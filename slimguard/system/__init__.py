"""What the operating system gives: files, directories, the terminal. It knows nothing of training.

The files:

    files.py      paths as users give them, and files that are replaced at one stroke
    logdirs.py    whether a directory is the log directory of a training
    texts.py      what others have written, made visible and cut
    terminal.py   prints it
    notebook.py   whether this is IPython or Jupyter, and what is told after a cell
    user_code.py  whether a file is the user's, or a library's
    numbers.py    what counts as a number
    log.py        the logger that all messages go through
    rate.py       how often the log is spoken to
    memory.py     how much memory there is
"""
