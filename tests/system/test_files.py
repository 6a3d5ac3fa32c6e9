"""Paths as users give them, and files that are replaced atomically."""

import os
import pathlib
import re
import stat

import pytest
import tensorflow as tf

import slimguard
from slimguard.system import files


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


def test_a_path_is_absolute_from_where_it_is_given(here):
    for given, meant in [
        ('logs', 'logs'),
        ('./logs/', 'logs'),
        ('a/../logs', 'logs'),
        (b'logs', 'logs'),
        (pathlib.Path('logs'), 'logs'),
        ('l\u00f6gs 100% #1', 'l\u00f6gs 100% #1'),
    ]:
        os.chdir(here)
        path = files.as_path(given)
        os.chdir('/')
        assert path == os.path.join(here, meant)


def test_a_url_stays_one_but_for_that_of_a_local_file(here):
    assert files.as_path('gs://bucket/logs/') == 'gs://bucket/logs'
    assert files.as_path('file://%s/logs' % here) == os.path.join(here, 'logs')


@pytest.mark.full
def test_what_is_no_path_is_a_type_error_that_shows_it():
    for bad in [None, 3, ['logs']]:
        with pytest.raises(TypeError, match='logdir must be a path .* not'):
            files.as_path(bad)


def test_a_path_that_cannot_be_says_why():
    for bad, why in [('', 'is empty'), (b'\xff', 'no UTF-8'), ('a\0b', 'NUL')]:
        with pytest.raises(ValueError, match=why):
            files.as_path(bad)


def test_a_url_that_pathlib_has_made_a_local_path_of_is_refused(here):
    for url in ['ram://x', 'gs://bucket/logs', 'file:///x', 'hdfs+s3://h/x']:
        scheme = url.partition(':')[0]
        with pytest.raises(ValueError, match=r"give the URL as a str, '%s://" % re.escape(scheme)):
            files.as_path(pathlib.Path(url))
        with pytest.raises(ValueError, match='save_path .* is a local path'):
            with tf.Graph().as_default():
                tf.compat.v1.get_variable('w', [])
                slimguard.FiniteSaver().save(None, pathlib.Path(url))
        assert os.listdir('.') == []


def test_a_local_folder_with_a_colon_is_one(here):
    for given in ['ram:/x', 'C:/logs', b'gs:/x']:
        name = os.fsdecode(given)
        assert files.as_path(given) == os.path.join(here, name)
        assert files.as_path(pathlib.Path(here, name)) == os.path.join(here, name)


def test_a_path_that_is_no_url_is_none(here):
    for name in ['C:/logs', 'a/ram:/x', 'ram:x', ':/x']:
        assert files.as_path(pathlib.Path(name)) == os.path.join(here, name)


def test_a_path_object_that_keeps_the_url_is_one():
    class Remote(os.PathLike):
        def __fspath__(self):
            return 'ram://x'

    assert files.as_path(Remote()) == 'ram://x'


@pytest.mark.parametrize('make', [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_not_opened_nor_waited_for_nor_replaced(here, make):
    make('there')
    with pytest.raises(OSError, match='there is no regular file'):
        files.open_to_read('there')
    with pytest.raises(FileNotFoundError):
        files.open_to_read('not there')
    with pytest.raises(OSError, match='no regular file'):
        files.write_atomically('there', b'content')
    assert os.listdir('.') == ['there']


def test_a_file_is_written_with_the_permissions_of_the_umask(here):
    before = os.umask(0o077)
    try:
        files.write_atomically('new', b'content')
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat('new').st_mode) == 0o600
    assert os.listdir('.') == ['new']


def test_a_link_is_replaced_and_the_file_behind_it_kept(here):
    pathlib.Path('file').write_bytes(b'old')
    os.symlink('file', 'link')
    files.write_atomically('link', b'new')
    assert not os.path.islink('link')
    assert pathlib.Path('file').read_bytes() == b'old'
    assert pathlib.Path('link').read_bytes() == b'new'


def test_what_cannot_be_finished_leaves_the_old_file_and_nothing_else(here):
    pathlib.Path('file').write_bytes(b'old')
    with pytest.raises(TypeError):
        files.write_atomically('file', 'not bytes')
    assert pathlib.Path('file').read_bytes() == b'old'
    assert os.listdir('.') == ['file']


def test_the_error_names_the_file_alone_where_none_can_be_made(here):
    path = os.path.join(here, 'nowhere', 'file')
    with pytest.raises(FileNotFoundError) as caught:
        files.write_atomically(path, b'new')
    assert str(caught.value) == '[Errno 2] No such file or directory: %r' % path


def test_what_a_check_refuses_does_not_take_its_place(here):
    pathlib.Path('file').write_bytes(b'old')

    def refuse(making):
        assert pathlib.Path(making).read_bytes() == b'new'
        raise KeyError(making)

    with pytest.raises(KeyError):
        files.write_atomically('file', b'new', check=refuse)
    assert pathlib.Path('file').read_bytes() == b'old'
    assert os.listdir('.') == ['file']


def test_names_that_are_no_utf8_are_not_listed(here):
    open(b'\xff', 'w').close()
    open('good', 'w').close()
    assert files.list_dir(here) == ['good']
    assert files.list_dir(os.path.join(here, 'not there')) == []
