"""What commands answer: the groups of incidents, and JSON for programs."""

import json
import pathlib
import shlex
import subprocess
import sys

import numpy as np
import pytest

import slimguard
from slimguard.compat.repairs import INSTALL_TENSORFLOW
from slimguard.incidents import advice, record_file
from slimguard.incidents.incident import Incident
from tests.helpers.checkpoints import write
from tests.helpers.children import environment, python
from tests.helpers.command import run


def document(capsys):
    """The printed JSON, read by a parser that refuses NaN and Infinity."""
    out, err = capsys.readouterr()
    assert not err
    read = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    json.dumps(read, ensure_ascii=False).encode('utf-8')
    return read


def record(logdir, *incidents):
    file = record_file.IncidentFile(str(logdir))
    file.make()
    for incident in incidents:
        file.append(incident)
    file.close()


def incident(step, reason='not finite: loss', action='skip', **known):
    return Incident(step, float('nan'), reason, ('loss',), 'hook', 1000.0, action=action, **known)


def test_incidents_of_one_cause_are_told_once_and_the_cause_first(tmp_path, capsys):
    known = dict(diagnosis='in the forward pass: log of 0\n  Log:0 (Log)', bundle='/b/step-3')
    (tmp_path / 'slimguard' / 'step-3').mkdir(parents=True)
    (tmp_path / 'slimguard' / 'step-3' / 'incident.json').write_text('{}')
    late = incident(40, 'not finite: gradient of w', 'raise', advice='train more slowly')
    tensors = ('loss', *['w%d' % n for n in range(9)])
    many = [
        Incident(
            step,
            float('nan'),
            'not finite: ' + ', '.join(tensors),
            tensors,
            'hook',
            1000.0,
            action='skip',
            **(known if step == 3 else {'diagnosis': known['diagnosis']}),
        )
        for step in range(3, 30)
    ]
    record(tmp_path, *many, late)
    assert run('incidents', tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '28 incidents on record, of 2 kinds; --all lists each of them'
    assert lines[2:6] == [
        '27 times, from global step 3 to 29: skip',
        '  in the forward pass: log of 0',
        '    Log:0 (Log)',
        '  not finite: loss, w0, w1 and 7 more',
    ]
    assert lines[6].startswith('  the first: ') and lines[6].endswith(', step 3, loss nan')
    folder = '%s/slimguard/step-3' % tmp_path
    assert lines[7].startswith('  what to do: Keep the input above 0: tf.math.log(tf.maximum(x, ')
    assert lines[8] == '  to run it again: python -m slimguard replay ' + folder
    assert lines[10] == 'once, at global step 40: raise'
    assert lines[-3] == '  what to do: train more slowly'
    assert lines[-1] == 'to see what happened: python -m slimguard report %s' % tmp_path
    assert run('incidents', '--all', tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 28
    assert 'skip    in the forward pass: log of 0; not finite: loss, w0, w1 and 7 more' in lines[1]
    assert [line.split()[0] for line in lines] == ['number', *map(str, range(1, 29))]


def test_checkpoints_answers_without_the_lines_that_tensorflow_prints_when_it_is_loaded(tmp_path):
    (tmp_path / 'graph.pbtxt').write_text('')
    done = python('-m', 'slimguard', 'checkpoints', tmp_path)
    assert (done.stdout, done.stderr) == ('no checkpoints in %s\n' % tmp_path, '')


def test_a_bundle_is_found_where_its_logdir_was_moved_to_and_a_removed_one_is_not_named(
    tmp_path, capsys
):
    there = tmp_path / 'logs' / 'slimguard' / 'step-3'
    advised = advice.for_a_bad_batch(skips=False)
    gone = incident(2, 'loss 5', bundle=str(there), advice=advised)  # of an earlier run
    record(tmp_path / 'logs', gone, incident(3, bundle=str(there)))
    there.mkdir()
    (there / 'incident.json').write_text('{}')
    (tmp_path / 'logs').rename(tmp_path / 'moved')
    assert run('incidents', tmp_path / 'moved') == 0
    moved = tmp_path / 'moved' / 'slimguard' / 'step-3'
    said = capsys.readouterr().out
    assert said.count('replay') == 1 and 'The cause is in the batch' in said
    assert 'python -m slimguard replay %s\n' % shlex.quote(str(moved)) in said
    found = record_file.read_incidents(tmp_path / 'moved')
    assert [each.bundle for each in found] == [None, str(moved)]


def test_hundreds_of_kinds_are_not_told_in_full(tmp_path, capsys):
    record(tmp_path, *[incident(step, 'not finite: w%d' % step) for step in range(300)])
    assert run('incidents', tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '300 incidents on record'
    assert lines[-3] == 'and 280 more kinds; --all lists each incident'
    assert len(lines) < 100


def test_incidents_as_json_are_those_of_the_record(tmp_path, capsys):
    incidents = [incident(3), incident(5), incident(None, 'a\x1b\ud800 b', None)]
    record(tmp_path, *incidents)
    with open(record_file.path_in(str(tmp_path)), 'a') as file:
        file.write('[1]\n{"step": 4')
    assert run('incidents', '--json', tmp_path) == 0
    read = document(capsys)
    assert sorted(read) == sorted('logdir record unreadable_lines groups incidents'.split())
    assert (read['logdir'], read['unreadable_lines']) == (str(tmp_path), 2)
    numbered = [dict(each.to_dict(), number=n) for n, each in enumerate(incidents, 1)]
    assert read['incidents'][:2] == numbered[:2]
    assert read['incidents'][0]['loss'] == 'nan'
    assert read['groups'][0] == {
        'cause': 'not finite: loss',
        'reason': 'not finite: loss',
        'count': 2,
        'first_step': 3,
        'last_step': 5,
        'actions': {'skip': 2},
        'not_examined': 0,
        'what_to_do': '',
    }
    assert read['groups'][1]['actions'] == {'': 1}


def test_what_cannot_be_answered_is_a_document_too(tmp_path, capsys):
    assert run('incidents', '--json', tmp_path) == 2
    assert 'is no logdir of a training' in document(capsys)['error']
    for command in ('incidents', 'checkpoints'):
        assert run(command, '--json', tmp_path / 'nowhere') == 2
        assert 'there is no directory' in document(capsys)['error']
    (tmp_path / 'graph.pbtxt').write_text('')
    assert run('incidents', '--json', tmp_path) == 1
    assert 'there is no record of incidents' in document(capsys)['error']
    record(tmp_path)
    with open(record_file.path_in(str(tmp_path)), 'w') as file:
        file.write('rubbish')
    assert run('incidents', '--json', tmp_path) == 2
    assert 'a damaged one' in document(capsys)['error']


def test_checkpoints_as_json(tmp_path, capsys):
    paths = write(tmp_path, [1.0, np.nan])
    assert run('checkpoints', '--json', tmp_path) == 1
    read = document(capsys)
    assert sorted(read) == sorted('logdir repair checkpoints restart is_good'.split())
    good, bad = read['checkpoints']
    assert (good['path'], good['is_good'], good['non_finite']) == (paths[0], True, [])
    assert sorted(good) == sorted('name path step time bytes is_good damage non_finite'.split())
    assert good['bytes'] > 0 and good['damage'] is None
    assert (bad['is_good'], bad['non_finite']) == (False, ['w'])
    ours, plain = read['restart']['slimguard'], read['restart']['tensorflow']
    assert (ours['resumes_from'], ours['is_good']) == (paths[0], True)
    assert (plain['resumes_from'], plain['is_good']) == (paths[1], False)
    assert (read['repair'], read['is_good']) == (None, False)
    assert run('checkpoints', '--json', '--repair', tmp_path) == 0
    read = document(capsys)
    assert read['repair'] and read['is_good']
    assert read['restart']['tensorflow']['resumes_from'] == paths[0]


def test_without_checkpoints_the_json_says_so(tmp_path, capsys):
    (tmp_path / 'graph.pbtxt').write_text('')
    assert run('checkpoints', '--json', tmp_path) == 0
    read = document(capsys)
    assert read['checkpoints'] == []
    assert read['restart'] == {'slimguard': None, 'tensorflow': None}


@pytest.mark.full
def test_doctor_as_json_says_what_it_says_to_people(capsys):
    exit_code = run('doctor', '--json')
    read = document(capsys)
    assert exit_code == bool(read['missing'])
    assert read['versions']['slimguard'].startswith(slimguard.__version__)
    assert {'Python', 'Jinja2', 'matplotlib'} <= set(read['versions'])
    assert not read['missing']
    assert run('doctor') == exit_code
    said = capsys.readouterr().out
    assert all(each['remedy'] in said for each in read['missing'])
    for name, version in read['versions'].items():
        assert name in said and version in said
    for repair in read['put_back']:
        assert repair['name'] in said and repair['source'] in said


def test_the_folder_that_we_keep_in_a_logdir_stands_for_it(tmp_path, capsys):
    record(tmp_path, incident(3))
    assert run('incidents', '--json', tmp_path / 'slimguard') == 0
    assert document(capsys)['logdir'] == str(tmp_path)
    assert run('replay', tmp_path / 'slimguard') == 2
    assert 'slimguard/slimguard' not in capsys.readouterr().err


def test_the_version_is_told(capsys):
    assert run('--version') == 0
    assert capsys.readouterr().out == 'slimguard %s\n' % slimguard.__version__


@pytest.mark.parametrize('command', ['--version', '--help', 'incidents --json', 'incidents'])
def test_what_reads_records_imports_no_large_package(tmp_path, command):
    record(tmp_path, incident(3))
    folder = [str(tmp_path)] * command.startswith('incidents')
    program = (
        'import sys\n'
        'from slimguard.__main__ import main\n'
        'try:\n'
        '    main()\n'
        'finally:\n'
        '    assert not {"tensorflow", "numpy", "jinja2"}.intersection(sys.modules)\n'
    )
    done = python('-c', program, *command.split(), *folder)
    assert (done.returncode, done.stderr) == (0, '')


@pytest.fixture(scope='module')
def bare_python(tmp_path_factory):
    """A Python in which nothing is installed: no TensorFlow, no tf-slim, no numpy."""
    folder = tmp_path_factory.mktemp('bare')
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', str(folder)], check=True)
    # A folder with slimguard alone: beside an installed slimguard are all other packages.
    (folder / 'slimguard_alone').mkdir()
    ours = pathlib.Path(slimguard.__file__).parent
    (folder / 'slimguard_alone' / 'slimguard').symlink_to(ours)
    return str(folder / 'bin' / 'python')


def bare_environment(bare_python):
    """The environment for a process of `bare_python`: it finds our slimguard, and nothing else."""
    alone = pathlib.Path(bare_python).parent.parent / 'slimguard_alone'
    return dict(environment(), PYTHONPATH=str(alone))


class TestWithoutTensorFlow:
    def run(self, bare_python, *arguments):
        return subprocess.run(
            [bare_python, '-m', 'slimguard', *map(str, arguments)],
            capture_output=True,
            text=True,
            env=bare_environment(bare_python),
            timeout=900,
        )

    @pytest.mark.full
    def test_help_the_version_and_the_record_are_told(self, bare_python, tmp_path):
        record(tmp_path, incident(3))
        for arguments in (['--help'], ['--version'], ['incidents', tmp_path], ['run', '--help']):
            done = self.run(bare_python, *arguments)
            assert (done.returncode, done.stderr) == (0, ''), arguments
        done = self.run(bare_python, 'incidents', '--json', tmp_path)
        assert json.loads(done.stdout)['incidents'][0]['step'] == 3
        assert self.run(bare_python, 'incidents').returncode == 2

    @pytest.mark.parametrize('command', ['run', 'checkpoints', 'replay', 'report', 'incidents'])
    def test_what_needs_it_says_so_in_a_sentence(self, bare_python, tmp_path, command):
        (tmp_path / 'graph.pbtxt').write_text('')
        (tmp_path / 'script.py').write_text('print("never")')
        given = {'run': tmp_path / 'script.py', 'incidents': 'gs://bucket/logs'}
        done = self.run(bare_python, command, given.get(command, tmp_path))
        assert (done.returncode, done.stdout) == (2, '')
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith('slimguard: no TensorFlow was found; slimguard uses the')
        assert INSTALL_TENSORFLOW in done.stderr
        assert ('python -m slimguard incidents %s' % tmp_path in done.stderr) == (
            command == 'report'
        )

    def test_so_does_the_json(self, bare_python, tmp_path):
        (tmp_path / 'graph.pbtxt').write_text('')
        done = self.run(bare_python, 'checkpoints', '--json', tmp_path)
        assert (done.returncode, done.stderr) == (2, '')
        assert 'pip install' in json.loads(done.stdout)['error']

    def test_python_says_so_where_a_name_is_used_that_needs_it(self, bare_python):
        program = (
            'import slimguard\n'
            'from slimguard import Skip, Incident, read_incidents\n'
            'for use in ("slimguard.train", "__import__(\'slimguard.learning\')",\n'
            '            "__import__(\'slimguard.hooks\')"):\n'
            '    try:\n'
            '        eval(use)\n'
            '    except ImportError as error:\n'
            '        print(error)\n'
        )
        done = subprocess.run(
            [bare_python, '-c', program],
            stdout=subprocess.PIPE,
            text=True,
            env=bare_environment(bare_python),
        )
        assert done.returncode == 0
        lines = done.stdout.splitlines()
        assert len(lines) == 3 and all(INSTALL_TENSORFLOW in line for line in lines)

    def test_one_that_cannot_be_imported_is_a_sentence_too(self, bare_python, tmp_path):
        (tmp_path / 'graph.pbtxt').write_text('')
        broken = tmp_path / 'packages' / 'tensorflow'
        broken.mkdir(parents=True)
        (broken / '__init__.py').write_text('raise TypeError("Descriptors cannot be created")')
        given = bare_environment(bare_python)
        path = given['PYTHONPATH'] + ':' + str(tmp_path / 'packages')
        done = subprocess.run(
            [bare_python, '-m', 'slimguard', 'checkpoints', str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
            env=dict(given, PYTHONPATH=path),
        )
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert 'TypeError: Descriptors cannot be created' in done.stderr
        assert 'slimguard doctor' in done.stderr


@pytest.mark.parametrize(
    'options',
    [
        ['--max-loss=1', '--max-bundles', '3', '--preemption-seconds=2', '--on-nan=skip:2,stop'],
        ['--max_loss=1', '--max_bundles', '3', '--preemption_seconds=2', '--on_nan=skip:2,stop'],
    ],
)
def test_options_of_run_take_hyphens_and_underscores_alike(options):
    from slimguard.command import parser

    made = parser.make('1')
    ours, script = parser.split(['run', *options, 'x.py', '--max-loss=9'], made.with_a_value)
    read = made.all.parse_args(ours)
    assert (read.max_loss, read.max_bundles, read.preemption_seconds) == (1.0, 3, 2.0)
    assert (read.on_nan, script) == ('skip:2,stop', ['x.py', '--max-loss=9'])
    said = made.run.format_help()
    assert '--max_loss' in said and '--max-loss' not in said


@pytest.mark.parametrize(
    'logdir, why',
    [('a*b', "holds '*'"), ('file', 'is no directory'), ('file/x', 'is no directory')],
)
def test_a_logdir_that_cannot_be_is_refused_before_the_script_begins(
    logdir, why, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').write_text('')
    assert run('run', '--logdir=' + logdir, 'script.py') == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith('slimguard run: error: argument --logdir: ') and why in said


def test_no_option_has_a_hyphen_in_its_declaration():
    """The command line replaces hyphens by underscores before it looks an option up."""
    from slimguard.command import parser

    made = parser.make('1')
    commands = [action for action in made.all._actions if hasattr(action, 'choices')]
    parsers = [each for action in commands for each in (action.choices or {}).values()]
    assert len(parsers) == 6
    for each in parsers:
        for action in each._actions:
            assert not any('-' in name[2:] for name in action.option_strings)


@pytest.mark.parametrize('version, besides', [('1.15.5', ' "protobuf<3.21"'), ('2.12.1', '')])
def test_doctor_of_a_tensorflow_that_cannot_be_imported_says_how_to_mend_it(
    version, besides, tmp_path
):
    """Such as a TensorFlow beside a numpy or protobuf that does not fit."""
    (tmp_path / 'tensorflow').mkdir()
    (tmp_path / 'tensorflow' / '__init__.py').write_text(
        'raise TypeError("Descriptors cannot be created directly")'
    )
    info = tmp_path / ('tensorflow-%s.dist-info' % version)  # the metadata that pip writes
    info.mkdir()
    (info / 'METADATA').write_text(
        'Metadata-Version: 2.1\nName: tensorflow\nVersion: %s\n' % version
    )
    done = subprocess.run(
        [sys.executable, '-m', 'slimguard', 'doctor', '--json'],
        stdout=subprocess.PIPE,
        env=dict(environment(), PYTHONPATH='%s:%s' % (tmp_path, environment()['PYTHONPATH'])),
        timeout=900,
    )
    (missing,) = json.loads(done.stdout.decode())['missing']
    assert done.returncode == 1 and missing['name'] == 'tensorflow'
    assert 'TypeError: Descriptors cannot be created' in missing['why']
    remedy = 'pip install --force-reinstall "tensorflow==%s"%s' % (version, besides)
    assert missing['remedy'] == remedy


@pytest.mark.full
def test_doctor_asks_for_names_that_moved_without_a_warning():
    done = python('-c', 'from slimguard import compat; print(compat.report())')
    assert done.returncode == 0, done.stderr
    assert 'fix your imports' not in done.stderr
    done = python('-m', 'slimguard', 'doctor')
    assert done.returncode < 2 and done.stdout and not done.stderr


def test_doctor_without_anything_says_what_to_install(bare_python):
    done = subprocess.run(
        [bare_python, '-m', 'slimguard', 'doctor'],
        stdout=subprocess.PIPE,
        text=True,
        env=bare_environment(bare_python),
    )
    assert done.returncode == 1
    said = done.stdout.splitlines()
    commands = [line.split('do:')[1].strip() for line in said if line.strip().startswith('do:')]
    expected = [INSTALL_TENSORFLOW, 'pip install tf-slim', 'pip install "jinja2>=3.0"']
    assert commands == expected
