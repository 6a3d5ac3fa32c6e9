"""Reads paths from users, and replaces files atomically, on any file system of `tf.io.gfile`.

:func:`as_path` makes a path absolute as soon as the user gives it, so that a later `os.chdir`
changes nothing. TensorFlow is imported only when a path needs it.
"""

import contextlib
import os
import re
import shutil
import uuid
from typing import IO, Any, Callable, List, Optional, Tuple, Type, Union

Path = Union[str, bytes, 'os.PathLike[Any]']

_LOCAL_SCHEME = 'file://'
# pathlib turns `ram://x` into `ram:/x`. A single letter is a drive of Windows.
_COLLAPSED_URL = re.compile(r'([A-Za-z][A-Za-z0-9+.-]+):[/\\](?!/)')


def as_path(path: Path, name: str = 'logdir') -> str:
    """The path of a directory or file as an absolute str.

    Args:
      path: a str, bytes or `os.PathLike`, relative or absolute, or a URL of a file system that
        `tf.io.gfile` knows (``gs://...``). ``file://`` is removed, which leaves a local path.
      name: what errors call the path.

    Raises:
      TypeError: if it is no path.
      ValueError: if it is empty, holds a character that TensorFlow allows in no path, or is a URL
        that `pathlib` has turned into a local path.
    """
    text = as_text(path, name)
    if not text:
        raise ValueError(
            "%s is empty; expected the path of a directory, such as 'logs' ('.' is the working "
            'directory)' % name
        )
    if not _is_utf8(text):
        raise ValueError(
            '%s %r is no UTF-8, and TensorFlow opens no other paths; rename it' % (name, path)
        )
    if '\0' in text:
        raise ValueError('%s %r holds a NUL, which no file name can' % (name, path))
    if text.startswith(_LOCAL_SCHEME):
        text = text[len(_LOCAL_SCHEME) :] or '/'
    if is_remote(text):
        return text.rstrip('/') if not text.endswith('://') else text
    # Not realpath: messages show a logdir as given. TensorFlow resolves `..` as abspath does.
    return os.path.abspath(text)


def as_text(path: Path, name: str = 'logdir') -> str:
    """A path as a str, not made absolute and not checked.

    Raises:
      TypeError: if it is no path.
      ValueError: if it is a URL that `pathlib` has turned into a local path.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError('%s must be a path (str, bytes or os.PathLike), not %r' % (name, path))
    text = os.fsdecode(path)
    url = _COLLAPSED_URL.match(text) if isinstance(path, os.PathLike) else None
    if url:
        raise ValueError(
            '%s %r is a local path: pathlib has dropped a slash of the URL; give the URL as a str, '
            "'%s://...', or, if a local folder of the name '%s:' is meant, its absolute path"
            % (name, path, url.group(1), url.group(1))
        )
    return text


def is_remote(path: str) -> bool:
    """Whether a path is on a file system that only TensorFlow knows."""
    return '://' in path


def exists(path: str) -> bool:
    return _gfile().exists(path) if is_remote(path) else os.path.exists(path)


def is_dir(path: str) -> bool:
    return _gfile().isdir(path) if is_remote(path) else os.path.isdir(path)


def is_file(path: str) -> bool:
    """Whether `path` is a regular file, or a link to one: reading a FIFO may never end."""
    if is_remote(path):
        return _gfile().exists(path) and not _gfile().isdir(path)
    return os.path.isfile(path)


def list_dir(path: str) -> List[str]:
    """The sorted names in a directory; [] if there is no such directory.

    Names that are not UTF-8 are left out, since TensorFlow cannot open them.
    """
    if not is_dir(path):
        return []
    if is_remote(path):
        return sorted(name.rstrip('/') for name in _gfile().listdir(path))
    return sorted(name for name in os.listdir(path) if _is_utf8(name))


def open_to_read(path: str) -> IO[bytes]:
    """Opens a regular file, local or remote; reading a FIFO or a device might never end.

    Raises:
      FileNotFoundError, tf.errors.NotFoundError: if there is none.
      OSError, tf.errors.OpError: if it is no regular file, or cannot be opened.
    """
    _require_regular(path)
    if is_remote(path) and not exists(path):
        raise FileNotFoundError(path)  # GFile would only raise at the first read
    return _gfile().GFile(path, 'rb') if is_remote(path) else open(path, 'rb')


def open_to_append(path: str) -> IO[bytes]:
    """Opens a regular file for unbuffered appending and for reading; makes it if necessary.

    Object stores (``gs://``) append by writing the whole object again. If two processes append at
    the same moment, one text is lost.
    """
    _require_regular(path)
    if not is_remote(path):
        return open(path, 'a+b', buffering=0)
    if not exists(path):
        with _gfile().GFile(path, 'wb') as file:
            file.write(b'')
    return _gfile().GFile(path, 'a+b')


def _require_regular(path: str) -> None:
    if exists(path) and not is_file(path):
        raise OSError('%s is no regular file' % path)


def size_of(file) -> int:
    """The size in bytes of an open file, local or remote."""
    return file.size() if hasattr(file, 'size') else os.fstat(file.fileno()).st_size


def errors(path: str) -> Tuple[Type[Exception], ...]:
    """The errors that a path may raise: its file system fails, or is unknown."""
    if not is_remote(path):
        return (OSError,)
    import tensorflow as tf

    return OSError, tf.errors.OpError


def errors_of_absence(path: str) -> Tuple[Type[Exception], ...]:
    """The errors that a path without a file raises."""
    if not is_remote(path):
        return (FileNotFoundError,)
    import tensorflow as tf

    return FileNotFoundError, tf.errors.NotFoundError


def make_dirs(path: str) -> None:
    """Makes a directory and its parents, unless they are there."""
    _gfile().makedirs(path) if is_remote(path) else os.makedirs(path, exist_ok=True)


def free_bytes(path: str) -> Optional[int]:
    """The bytes that this process may still write to the file system of a local directory.

    None if it is unknown: some network file systems report 0 blocks.
    """
    try:
        total, _, free = shutil.disk_usage(path)
    except OSError:
        return None
    return free if total > 0 else None


def megabytes(size: float) -> str:
    """A number of bytes in words, in megabytes."""
    return '%.1f MB' % (size / 1e6)


def write_atomically(
    path: str,
    content: bytes,
    check: Optional[Callable[[str], None]] = None,
) -> None:
    """Replaces the content of the file at `path`; readers see either the old or the new content.

    The umask sets its permissions, as for any new file. A link at `path` is replaced, not followed.
    On an object store (``gs://``) the temporary object is copied to `path` and then removed.

    Args:
      path: the file.
      content: its new content.
      check: called with the path of the temporary file before this file replaces `path`. If it
        raises, the old file stays.

    Raises:
      OSError, tf.errors.OpError: if the file cannot be written, or if `path` is a device, a FIFO or
        a directory, which is then not changed.
    """
    _require_regular(path)
    making = '%s.making-%s' % (path, uuid.uuid4().hex)
    gfile = _gfile() if is_remote(path) else None
    try:
        # 'x': do not follow a link that is there
        with open(making, 'xb') if gfile is None else gfile.GFile(making, 'wb') as file:
            file.write(content)
        if check is not None:
            check(making)
        if gfile is None:
            os.replace(making, path)
        else:
            gfile.rename(making, path, overwrite=True)
    except BaseException as error:
        with contextlib.suppress(*errors(path)):
            os.remove(making) if gfile is None else gfile.remove(making)
        if isinstance(error, OSError) and error.filename == making:
            error.filename = path  # users do not know the temporary name
            del error.filename2  # None would put "-> None" into the message
        raise


def _is_utf8(name: str) -> bool:
    try:
        name.encode('utf-8')
    except UnicodeEncodeError:
        return False
    return True


def _gfile():
    import tensorflow as tf

    return tf.io.gfile
