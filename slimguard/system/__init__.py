"""What the operating system gives: files, directories, the terminal. It knows nothing of training.

files.py     paths as users give them, and files that are replaced at one stroke
logdirs.py   whether a directory is the log directory of a training
terminal.py  prints what others have written
"""
