"""What is a log directory, and what is refused."""

import os
import shutil

import pytest

import slimguard
from slimguard.__main__ import main
from slimguard.system import files, logdirs
from tests.helpers.children import python
from tests.helpers.models import Linear


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
    names += ['slimguard/incident-5/', 'slimguard/']
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
        what = 'it holds no checkpoint, no summaries and no record of incidents'
        assert str(caught.value) == '%s is no logdir of a training: %s' % (folder, what)


def test_our_folder_in_a_logdir_is_none_and_the_error_names_the_logdir(tmp_path):
    folder = tmp_path / 'logs' / 'slimguard'
    folder.mkdir(parents=True)
    (folder / 'incidents.jsonl').write_text('')
    assert logdirs.what_is_missing(str(folder)) == (
        '%s is in the logdir of a training: give %s' % (folder, tmp_path / 'logs')
    )


BUNDLE = os.path.join(os.path.dirname(__file__), '..', 'data', 'made_by_tf115')


class TestABundle:
    """It has a checkpoint in it, and is no logdir: nothing is to be written there."""

    @pytest.fixture
    def bundle(self, tmp_path):
        path = tmp_path / 'logs' / 'slimguard' / 'incident-4'
        shutil.copytree(BUNDLE, str(path))
        before = sorted(os.listdir(str(path)))
        yield path
        assert sorted(os.listdir(str(path))) == before

    def test_is_no_logdir_for_a_command(self, bundle, tmp_path, capsys):
        for command in (['checkpoints'], ['checkpoints', '--repair'], ['incidents'], ['report']):
            with pytest.raises(SystemExit) as left:
                main(command + [str(bundle)])
            assert left.value.code == 2
            assert capsys.readouterr().err == (
                'slimguard: %s is a bundle, which holds one bad step, and no logdir: that of its '
                'training is %s\n' % (bundle, tmp_path / 'logs')
            )

    def test_is_no_logdir_for_a_training(self, bundle, tmp_path):
        model = Linear()
        words = 'logdir .* is a bundle, .* no logdir: that of its training is .*logs$'
        with pytest.raises(ValueError, match=words):
            slimguard.train(model.minimize(), bundle)
        with pytest.raises(ValueError, match=words):
            slimguard.NanLossHook(model.loss, logdir=bundle)

    def test_that_was_moved_is_one_too(self, bundle, tmp_path):
        moved = shutil.copytree(str(bundle), str(tmp_path / 'moved'))
        assert logdirs.what_is_missing(moved).endswith('no logdir: give that of its training')

    def test_that_a_repair_has_written_to_is_one_too(self, bundle, tmp_path):
        moved = shutil.copytree(str(bundle), str(tmp_path / 'moved'))
        open(os.path.join(moved, 'checkpoint'), 'w').close()
        assert 'is a bundle' in logdirs.what_is_missing(moved)

    def test_is_more_than_a_file_of_its_name(self, tmp_path):
        for name in ('incident.json', 'checkpoint', 'model.ckpt-1.index'):
            (tmp_path / name).write_text('')
        assert logdirs.require_logdir(tmp_path) == files.as_logdir(tmp_path) == str(tmp_path)


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
