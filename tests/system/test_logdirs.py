"""Which directories count as log directories, and which are refused."""

import os

import pytest

from slimguard.system import files, logdirs
from tests.helpers.children import python


def make(folder, *names):
    folder.mkdir()
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if name.endswith('/') else path.write_text('')
    return folder


def test_one_file_of_a_training_is_enough(tmp_path):
    names = ['checkpoint', 'model.ckpt-5.index', 'old.ckpt.meta', 'graph.pbtxt', 'm-00000-of-00002']
    names += ['events.out.tfevents.1.host', 'slimguard/incidents.jsonl', 'slimguard/report.html']
    names += ['slimguard/step-5/', 'slimguard/']
    for number, name in enumerate(names):
        logdir = make(tmp_path / str(number), name)
        assert logdirs.require_logdir(logdir) == str(logdir), name


def test_a_directory_of_other_things_is_none_and_the_error_says_what_is_missing(tmp_path):
    for number, names in enumerate(
        ([], ['train.py', 'data/'], ['my.checkpoint', 'slimguard'], ['slimguard/gate.py'])
    ):
        folder = make(tmp_path / str(number), *names)
        with pytest.raises(logdirs.LogdirError) as caught:
            logdirs.require_logdir(folder)
        what = 'it holds no checkpoint, no summaries and no record of incidents. Give the folder '
        assert str(caught.value).startswith('%s is no logdir of a training: %s' % (folder, what))
    folder = make(tmp_path / 'runs', 'run 1/checkpoint', 'run-2/checkpoint', 'other/train.py')
    with pytest.raises(logdirs.LogdirError) as caught:
        logdirs.require_logdir(folder)
    told = "Give one of the folders in it: '%s/run 1', %s/run-2" % (folder, folder)
    assert str(caught.value).endswith(told)
    (folder / 'slimguard-logs' / 't-1' / 'slimguard').mkdir(parents=True)
    (folder / 'slimguard-logs' / 't-1' / 'slimguard' / 'incidents.jsonl').touch()
    said = logdirs.what_is_missing(str(folder))
    assert "the folders in it: %s/slimguard-logs/t-1, '%s/run 1', " % (folder, folder) in said


def test_our_folder_in_a_logdir_stands_for_it_and_of_a_bundle_the_error_names_it(tmp_path):
    folder = tmp_path / 'logs' / 'slimguard'
    folder.mkdir(parents=True)
    assert logdirs.meant_by(str(folder)) == str(folder)  # without a record it may be anybody's
    (folder / 'incidents.jsonl').write_text('')
    bundle = folder / 'step-4'
    bundle.mkdir()
    (bundle / 'incident.json').write_text('{}')
    for given in (folder, str(folder) + '/', tmp_path / 'logs'):
        assert logdirs.require_logdir(given) == str(tmp_path / 'logs')
    assert logdirs.what_is_missing(str(bundle)) == (
        '%s is a bundle, and no logdir: give %s' % (bundle, tmp_path / 'logs')
    )
    with pytest.raises(ValueError, match='is a bundle, and no logdir: give '):
        logdirs.as_logdir(bundle)
    assert logdirs.as_logdir(bundle.parent.parent) == str(tmp_path / 'logs')


def test_a_logdir_that_tensorflow_could_not_restore_from_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ['run[1]', 'all*', 'what?', 'back\\slash']:
        with pytest.raises(ValueError, match='wild card'):
            logdirs.as_logdir(name)
        assert files.as_path(name) == str(tmp_path / name)  # for reading


def test_what_is_no_directory_is_said_so(tmp_path):
    (tmp_path / 'file').write_text('')
    assert 'a file, and no directory' in logdirs.what_is_missing(str(tmp_path / 'file'))
    assert 'there is no directory' in logdirs.what_is_missing(str(tmp_path / 'nothing'))


def test_a_name_that_is_no_utf8_is_passed_over(tmp_path):
    open(os.fsencode(str(tmp_path)) + b'/\xff', 'w').close()
    assert logdirs.what_is_missing(str(tmp_path)) is not None
    (tmp_path / 'checkpoint').write_text('')
    assert logdirs.what_is_missing(str(tmp_path)) is None


def test_a_local_path_is_looked_at_without_tensorflow(tmp_path):
    code = (
        'import sys; from slimguard.system.logdirs import what_is_missing;'
        'print(what_is_missing(sys.argv[1]))'
    )
    run = python('-c', code + "; assert 'tensorflow' not in sys.modules", tmp_path)
    assert run.returncode == 0 and 'is no logdir of a training' in run.stdout, run.stderr
