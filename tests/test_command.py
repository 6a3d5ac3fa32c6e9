"""The commands that look into a logdir: their arguments, output and exit codes."""

import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from slimguard import __main__
from slimguard.checkpoints.repair import repair
from slimguard.incidents import record_file
from slimguard.incidents.incident import Incident
from tests.helpers.checkpoints import truncate, write
from tests.helpers.children import environment, forked_python, python
from tests.helpers.command import run

tf1 = tf.compat.v1

DISK_IS_FULL = 'slimguard: stdout cannot be written: No space left on device'
HOSTILE = 'a\x1b[31m\u202e\0\nb'
WITHOUT_TENSORFLOW = """\
import sys
from slimguard.__main__ import main
try:
    main()
finally:
    assert not [name for name in sys.modules if name.partition('.')[0] == 'tensorflow']
"""


def record(logdir, *reasons):
    file = record_file.IncidentFile(str(logdir))
    file.make()
    for number, reason in enumerate(reasons):
        file.append(Incident(number, 0.5, reason, (), 'hook', 1000.0, action='skip'))
    file.close()


class TestIncidents:
    def test_are_a_table(self, tmp_path, capsys):
        record(tmp_path, 'first', 'second')
        assert run('incidents', '--all', tmp_path) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ['number', 'time', 'step', 'loss', 'action', 'reason']
        assert [line.split()[:1] + line.split()[3:] for line in lines[1:]] == [
            ['1', '0', '0.5', 'skip', 'first'],
            ['2', '1', '0.5', 'skip', 'second'],
        ]

    def test_are_told_without_tensorflow(self, tmp_path):
        record(tmp_path, 'first')
        done = python('-c', WITHOUT_TENSORFLOW, 'incidents', '--all', tmp_path)
        assert (done.returncode, done.stderr) == (0, '')
        assert done.stdout.splitlines()[1].endswith('first')

    def test_lines_that_are_none_are_counted_and_not_printed(self, tmp_path, capsys):
        record(tmp_path, 'x')
        with open(record_file.path_in(str(tmp_path)), 'a') as file:
            file.write('[1]\n{"a": 1}\n{"step": 3, "reason": "x", "loss": "garbage"}\n{"step": 12')
        assert run('incidents', '--all', tmp_path) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 2 and 'None' not in out
        assert err.splitlines() == [
            'slimguard: 4 lines of the record could not be read; a kill can cut one short.',
        ]

    def test_there_were_none_and_that_is_known(self, tmp_path, capsys):
        record(tmp_path)
        assert run('incidents', tmp_path) == 0
        assert capsys.readouterr().out == 'no incident is on record in %s\n' % tmp_path

    def test_without_a_record_it_is_not_known(self, tmp_path, capsys):
        write(tmp_path, [1.0])
        assert run('incidents', tmp_path) == 1
        out, err = capsys.readouterr()
        assert not out and 'there is no record of incidents in %s: ' % tmp_path in err
        assert 'no guarded training has written one there' in err
        assert 'slimguard run, the end of its output names the folder' in err
        assert 'NanLossHook needs logdir' in err
        assert not (tmp_path / 'slimguard').exists()

    @pytest.mark.parametrize('text', ['[1]\n', '\x89PNG\r\n\x1a\n', '{"step": 1'])
    def test_a_record_in_which_nothing_can_be_read_is_said_to_be_so(self, tmp_path, capsys, text):
        record(tmp_path)
        with open(record_file.path_in(str(tmp_path)), 'w') as file:
            file.write(text)
        assert run('incidents', tmp_path) == 2
        out, err = capsys.readouterr()
        assert not out and 'is no record of slimguard, or a damaged one' in err

    def test_what_was_recorded_does_not_speak_to_the_terminal(self, tmp_path, capsys):
        record(tmp_path, HOSTILE, 'x' * 10**6)
        for option, most in (('--all', 1000), (None, 2000)):
            assert run('incidents', tmp_path, *filter(None, [option])) == 0
            out = capsys.readouterr().out
            assert 'a\\x1b[31m\\u202e\\x00\\nb' in out
            assert len(out) < most


def test_beside_a_bundle_that_is_not_there_the_others_are_named(tmp_path, capsys):
    times = {'10': '{"incident": {"time": 2.0}}', '4': '{"incident": {"time": 3.0}}', '5': '['}
    for number, said in times.items():
        (tmp_path / 'slimguard' / ('step-' + number)).mkdir(parents=True)
        (tmp_path / 'slimguard' / ('step-' + number) / 'incident.json').write_text(said)
    named = 'step-5, step-10, step-4'
    for missing, said in (
        ('slimguard/step-99', '/slimguard, the newest last: %s\n' % named),
        ('logs', 'the line "to see what happened" at the end of a training'),
    ):
        with pytest.raises(SystemExit):
            __main__.main(['replay', str(tmp_path / missing)])
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    'command', ['incidents', 'checkpoints', 'checkpoints --repair', 'report', 'replay']
)
def test_a_file_system_that_tensorflow_does_not_know_is_a_sentence(command, capsys):
    assert run(*command.split(), 'bogus://x') == 2
    out, err = capsys.readouterr()
    assert not out
    assert 'bogus://x' in err and "cannot be read: File system scheme 'bogus' not impl" in err
    assert 'cannot run it' not in err


NOT_TO_BE_READ = """\
import os, sys, tensorflow
from slimguard.checkpoints import repair
from slimguard.incidents import record_file
from slimguard.__main__ import main
if os.getuid() == 0:
    os.setuid(65534)
main(sys.argv[1:])
"""


@pytest.mark.parametrize('closed', ['', 'slimguard', 'slimguard/incidents.jsonl'])
def test_rights_that_are_missing_are_said_to_be_so(closed):
    with tempfile.TemporaryDirectory() as logdir:  # another user could not get to tmp_path
        os.chmod(logdir, 0o755)
        record(logdir)
        path = os.path.join(logdir, closed)
        os.chmod(path, 0)
        try:
            done = forked_python('-c', NOT_TO_BE_READ, 'incidents', logdir)
        finally:
            os.chmod(path, 0o700)
    assert done.returncode == 2, done.stderr
    assert 'cannot be read' in done.stderr and 'Permission denied' in done.stderr
    assert 'Traceback' not in done.stderr and not done.stdout


def resumes_in_plain_tensorflow(logdir):
    """Whether a SessionManager restores something, as in slim and in a MonitoredSession."""
    with tf.Graph().as_default():
        w = tf1.get_variable('w', initializer=[0.0, 0.0])
        step = tf1.train.get_or_create_global_step()
        arguments = '', tf1.global_variables_initializer(), tf1.train.Saver([w, step]), str(logdir)
        try:
            with tf1.train.SessionManager().prepare_session(*arguments) as session:
                return bool(session.run(step))
        except Exception:
            return False


STATES = {
    'a list of them': None,
    'garbage': b'\0\xff rubbish {',
    'text': b'rubbish: 3',
    'nothing': b'',
    'no name': b'model_checkpoint_path: ""',
    'one that is gone': b'model_checkpoint_path: "gone-9"',
    'one of another folder': b'model_checkpoint_path: "/nowhere/model.ckpt-2"',
    'a NUL': b'model_checkpoint_path: "model.ckpt-2\\000"',
    'an older one': b'model_checkpoint_path: "model.ckpt-1"',
    'no file': os.remove,
}


class TestCheckpoints:
    @pytest.mark.parametrize('state', STATES.values(), ids=STATES)
    def test_what_is_said_of_a_restart_is_what_happens(self, tmp_path, state, capsys):
        paths = write(tmp_path, [1.0, 2.0])
        path = str(tmp_path / 'checkpoint')
        if callable(state):
            state(path)
        elif state is not None:
            (tmp_path / 'checkpoint').write_bytes(state)
        code = run('checkpoints', tmp_path)
        said = capsys.readouterr().out
        assert code == (not resumes_in_plain_tensorflow(tmp_path))
        assert code == ('plain TensorFlow goes by its state file: ' in said)
        repair(tmp_path)
        assert ' resumes from %s, which is finite\n' % paths[-1] in said
        assert resumes_in_plain_tensorflow(tmp_path)

    def test_exit_with_1_if_a_restart_would_begin_anew_beside_them(self, tmp_path, capsys):
        write(tmp_path, [1.0])
        os.remove(str(tmp_path / 'checkpoint'))
        assert run('checkpoints', tmp_path) == 1
        said = capsys.readouterr().out
        assert 'its state file: there is none in %s\n' % tmp_path in said
        assert said.endswith(': python -m slimguard checkpoints --repair %s\n' % tmp_path)
        assert run('checkpoints', tmp_path, '--repair') == 0

    @pytest.mark.parametrize('values', [[], [np.nan], [np.nan, np.inf]])
    def test_a_repair_exits_with_1_if_nothing_can_be_resumed_from(self, tmp_path, values):
        (tmp_path / 'graph.pbtxt').write_text('')
        write(tmp_path, values)
        for _ in range(2):
            assert run('checkpoints', '--repair', tmp_path) == 1

    def test_the_folder_may_be_given_in_any_way(self, tmp_path, monkeypatch, capsys):
        paths = write(tmp_path / 'l\u00f6gs 100%', [1.0, 2.0])
        monkeypatch.chdir(tmp_path)
        url = 'file://%s' % (tmp_path / 'l\u00f6gs 100%')
        for given in ('l\u00f6gs 100%', './l\u00f6gs 100%/', 'a/../l\u00f6gs 100%', url):
            assert run('checkpoints', given) == 0
            assert 'a restart resumes from %s, which' % paths[-1] in capsys.readouterr().out

    def test_names_of_files_do_not_speak_to_the_terminal(self, tmp_path, capsys):
        (path,) = write(tmp_path, [1.0])
        for end in ('.index', '.data-00000-of-00001'):
            os.rename(path + end, str(tmp_path / ('a\x1b[31m\u202e' + 'x' * 100 + end)))
        truncate(str(tmp_path / ('a\x1b[31m\u202e' + 'x' * 100 + '.index')))
        assert run('checkpoints', tmp_path) == 1
        out = capsys.readouterr().out
        assert 'a\\x1b[31m\\u202e' in out
        assert not {'\x1b', '\u202e'} & set(out)
        assert max(map(len, out.splitlines())) < 600


@pytest.mark.parametrize('command', ['incidents', 'checkpoints', 'checkpoints --repair', 'report'])
def test_a_directory_that_is_no_logdir_is_refused_with_what_was_looked_for(tmp_path, command):
    (tmp_path / 'notes.txt').write_text('')
    done = python('-c', WITHOUT_TENSORFLOW, *command.split(), tmp_path)
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr.startswith('slimguard: %s is no logdir of a training' % tmp_path)
    assert 'it holds no checkpoint, no summaries and no record of incidents' in done.stderr
    assert os.listdir(str(tmp_path)) == ['notes.txt']


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['incidents', ''], 'the directory is empty'),
        (['incidents', 'setup.cfg'], "'setup.cfg' is a file; expected a directory; the line"),
        (['incidents', 'file:///nowhere'], "there is no directory 'file:///nowhere'"),
        (['incidents', b'\xff'], 'is no UTF-8'),
        (
            ['run', '--on-nan=foo', 'x.py'],
            "argument --on_nan: unknown policy 'foo'; expected raise",
        ),
        (
            ['run', '--on-nan', 'foo', 'x.py'],
            "argument --on_nan: unknown policy 'foo'; expected raise",
        ),
        (['run', '--lr=1', 'x.py'], '--lr=1; options of the script come after the script'),
        (['--foo'], 'unrecognized arguments: --foo'),
        (['report', '--hlp'], 'unrecognized arguments: --hlp; did you mean --help?'),
        (['checkpoints', '--repare', 'logs'], '--repare; did you mean --repair?'),
        (['run', '--max-loss', '-1', 'x.py'], "expected a positive finite number, not '-1'"),
        (['run', '--on-nan', 'skip', '--max-loss=1', 'no-file.py'], "no file 'no-file.py'"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_usage_error_comes_without_tensorflow(tmp_path, arguments, message):
    (tmp_path / 'setup.cfg').write_text('')
    done = subprocess.run(
        [sys.executable, '-c', WITHOUT_TENSORFLOW, *arguments],
        capture_output=True,
        env=environment(),
        cwd=str(tmp_path),
        timeout=900,
    )
    said = done.stderr.decode('utf-8')
    assert done.returncode == 2 and not done.stdout
    assert 'usage: slimguard' in said and message in said and 'Traceback' not in said


def test_without_a_command_it_prints_its_help_with_examples(capsys):
    __main__.main([])
    said = capsys.readouterr().out
    assert 'usage: slimguard' in said and 'slimguard report logs' in said


@pytest.mark.full
def test_options_of_the_script_stay_as_they_are(tmp_path):
    (tmp_path / 'script.py').write_text('import sys; print(sys.argv[1:])')
    arguments = ['--on-nan', 'skip', 'script.py', '--my-flag', '--on-nan=x']
    done = forked_python('-m', 'slimguard', 'run', *arguments, cwd=str(tmp_path))
    assert done.stdout == "['--my-flag', '--on-nan=x']\n"


@pytest.fixture(scope='module')
def logdir(tmp_path_factory):
    """The log directory of a training with many incidents; not to be changed."""
    logdir = tmp_path_factory.mktemp('logs')
    record(logdir, *['gr\u00f6\u00dfe'] * 3000)
    return str(logdir)


class TestStdout:
    """Stdout as a shell may redirect it: to a closed pipe, a full disk, an ASCII stream."""

    def shell(self, command, logdir, **variables):
        done = subprocess.run(
            ['bash', '-o', 'pipefail', '-c', command],
            capture_output=True,
            env=dict(environment(), PYTHON=sys.executable, LOGDIR=logdir, **variables),
            timeout=900,
        )
        return done.returncode, done.stdout, done.stderr.decode('utf-8').splitlines()

    @pytest.mark.parametrize('unbuffered', ['', '1'])
    def test_a_closed_pipe_ends_quietly(self, logdir, unbuffered):
        command = '"$PYTHON" -m slimguard incidents --all "$LOGDIR" | head -1'
        code, out, err = self.shell(command, logdir, PYTHONUNBUFFERED=unbuffered)
        assert code == 141 and not err
        assert out.split() == [b'number', b'time', b'step', b'loss', b'action', b'reason']

    @pytest.mark.skipif(not os.path.exists('/dev/full'), reason='there is no /dev/full here')
    @pytest.mark.parametrize('arguments', ['incidents "$LOGDIR"', 'incidents --json "$LOGDIR"'])
    @pytest.mark.parametrize('unbuffered', ['', '1'])
    def test_a_full_disk_is_a_sentence(self, logdir, arguments, unbuffered):
        command = '"$PYTHON" -m slimguard %s > /dev/full' % arguments
        code, _, err = self.shell(command, logdir, PYTHONUNBUFFERED=unbuffered)
        assert code == 2
        assert err == [DISK_IS_FULL]

    @pytest.mark.full
    @pytest.mark.parametrize('closed', ['>&-', '>&- 2>&-'])
    def test_one_that_is_closed_leaves_the_exit_code_as_it_is(self, logdir, closed):
        for folder, expected in ((logdir, 0), (os.path.dirname(__file__), 2)):
            command = '"$PYTHON" -m slimguard incidents "$LOGDIR" ' + closed
            code, out, _ = self.shell(command, folder)
            assert code == expected and not out

    def test_one_of_ascii_gets_escapes(self, logdir):
        command = 'LC_ALL=C PYTHONIOENCODING=ascii "$PYTHON" -m slimguard incidents --all $LOGDIR'
        code, out, _ = self.shell(command, logdir)
        assert code == 0
        assert out.splitlines()[1].endswith(b'gr\\xf6\\xdfe')
