"""The examples as a user runs them: processes of their own, judged by what they print."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from slimguard.report import loss_history
from tests.helpers.children import ROOT, environment, forked_python
from tests.helpers.jobs import Job, free_ports
from tests.helpers.snippets import snippet_named

EXAMPLES = ROOT / 'examples'


def start(*flags, script='slim_train.py'):
    return forked_python(EXAMPLES / script, *flags, stderr=subprocess.STDOUT)


def run(tmp_path, *flags, status=0, **kwargs):
    """Runs the example to its end. Returns its table as a dict of strings."""
    done = start('--logdir', str(tmp_path), *flags, **kwargs)
    assert done.returncode == status, done.stdout
    return table_in(done.stdout)


def flags_in(page, name):
    """The flags that a command of the docs gives the example."""
    command, _, flags = snippet_named(ROOT / page, name).partition('examples/slim_train.py')
    assert command.endswith('python ')
    return flags.split()


def table_in(output):
    return dict(re.findall(r'^(\w[\w -]*?) {2,}(.*)$', output, re.MULTILINE))


def test_skipping_the_damaged_batches_reaches_the_accuracy(tmp_path):
    flags = flags_in('README.md', 'try-command')
    assert flags == ['--nan_every=10']
    table = run(tmp_path, *flags)
    # The README shows such a table.
    assert list(table) == list(table_in(snippet_named(ROOT / 'README.md', 'example-table')))
    assert float(table['test accuracy']) >= 0.95
    assert table['non-finite variables'] == '0'
    assert table['steps'] == '600'
    # 600 good batches are the first 666 without every tenth.
    assert (table['skipped batches'], table['rollbacks']) == ('66', '0')
    # The loss curve has a point for each ten steps.
    curve, troubles = loss_history.read(str(tmp_path))
    assert troubles == []
    assert curve is not None and curve.points >= 60, sorted(os.listdir(str(tmp_path)))


@pytest.mark.full
def test_a_rollback_with_a_smaller_learning_rate_helps(tmp_path):
    table = run(tmp_path, *flags_in('docs/rollback.md', 'explode-command'))
    assert table['outcome'] == 'ended'
    assert int(table['rollbacks']) >= 1
    assert float(table['test accuracy']) >= 0.9


@pytest.mark.full
def test_plain_tf_slim_ends_with_non_finite_variables(tmp_path):
    table = run(tmp_path, '--nan_every=10', '--stock', '--steps=100', status=1)
    assert int(table['non-finite variables']) > 0


@pytest.mark.full
@pytest.mark.parametrize('script', ['plain_session.py', 'monitored_session.py'])
def test_the_short_examples_skip_their_bad_step(script):
    done = start(script=script)
    assert done.returncode == 0, done.stdout
    assert 'batch skipped' in done.stdout
    assert re.search(r'^w = (2\.9|3\.0)', done.stdout, re.MULTILINE), done.stdout


@pytest.mark.full
def test_the_cells_of_the_notebook_run_in_order():
    notebook = EXAMPLES / 'notebook.ipynb'
    done = start(notebook, script=ROOT / 'tests' / 'helpers' / 'snippets.py')
    assert done.returncode == 0, done.stdout
    assert ' after 200 steps, 22 batches skipped\n' in done.stdout
    assert 'bad data: 1 NaN among 2048 values, in row 0' in done.stdout


def test_what_is_to_be_copied_is_short():
    lines = (EXAMPLES / 'slim_train.py').read_text().splitlines()
    assert len(lines) <= 150
    # All of `train` is on the first screen.
    starts = [line.split('(')[0] for line in lines]
    assert starts.index('def train') < starts.index('def train_stock') < 50


@pytest.mark.full
def test_the_commands_of_the_docs_train_on_a_cluster():
    commands = snippet_named(ROOT / 'docs' / 'clusters.md', 'cluster-commands')
    ports = iter(free_ports(3))
    commands = re.sub(r'localhost:\d+', lambda _: 'localhost:%d' % next(ports), commands)
    commands = commands.replace('slim_train_cluster.py', 'slim_train_cluster.py --steps=300')
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ['PATH']
    shell = subprocess.Popen(
        ['bash', '-c', commands],
        cwd=str(ROOT),
        env=dict(environment(), PATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=600)
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all processes have ended, as they should
        else:
            shell.communicate()
            pytest.fail('processes were left behind')
    table = table_in(output)
    assert float(table['test accuracy']) >= 0.9
    assert table['non-finite variables'] == '0'
    assert int(table['steps']) >= 300
    other = re.search(r'^worker 1: ended; incidents: (\d+)$', output, re.MULTILINE)
    # Each worker skips a tenth of its batches, and 300 batches are good in all.
    assert 31 <= int(table['skipped batches']) + int(other.group(1)) <= 35


def load_example():
    sys.path.insert(0, str(EXAMPLES))  # as Python does for a script of this folder
    return importlib.import_module('slim_train_cluster')


def run_in_cluster(role, flags, config):
    """Runs the example in a role's process."""
    os.environ['TF_CONFIG'] = json.dumps(config)
    return load_example().main(flags)


@pytest.mark.full
def test_a_synchronous_cluster_given_by_tf_config(tmp_path):
    flags = ['--logdir=%s' % tmp_path, '--sync', '--nan_every=5', '--on_nan=skip', '--steps=20']
    with Job(run_in_cluster, ps=1, workers=2, start=False) as job:
        (chief, worker), ps = job.cluster['worker'], job.cluster['ps']
        cluster = {'chief': [chief], 'worker': [worker], 'ps': ps}
        # All three have the index 0, each in a job of its own.
        places = {('ps', 0): 'ps', ('worker', 0): 'chief', ('worker', 1): 'worker'}
        for role, name in places.items():
            config = {'cluster': cluster, 'task': {'type': name, 'index': 0}}
            job.start(*role, run_in_cluster, flags, config)
        ended = job.wait_for_workers()
    assert [(end.error, end.value) for end in ended] == [(None, 0), (None, 0)], ended
    table = table_in(ended[0].log)
    assert int(table['steps']) >= 20
    assert (table['non-finite variables'], table['outcome']) == ('0', 'ended')
    other = re.search(r'^worker 1: ended; incidents: (\d+)$', ended[1].log, re.MULTILINE)
    # A fifth of each worker's batches is bad, and 20 steps take 40 good batches of both workers.
    assert int(table['skipped batches']) + int(other.group(1)) >= 8


HOSTS = ['--ps_hosts=a:1', '--worker_hosts=b:2,c:3']
CONFIG = {
    'cluster': {'ps': ['a:1', 'a:2'], 'worker': ['b:2'], 'chief': ['c:3']},
    'task': {'type': 'worker', 'index': 0},
}
PLACES = [
    ([], None, 'give --ps_hosts and --worker_hosts, or TF_CONFIG'),
    (HOSTS + ['--job_name=worker', '--task_index=1', '--logdir=l'], None, ('worker', 1, 1)),
    (HOSTS + ['--job_name=ps'], None, ('ps', 0, None)),
    (['--logdir=l'], CONFIG, ('worker', 0, 1)),
    (['--job_name=chief', '--logdir=l'], CONFIG, ('chief', 0, 0)),
    (['--worker_hosts=d:4,e:5', '--task_index=1', '--logdir=l'], CONFIG, ('worker', 1, 2)),
    (['--ps_hosts=b:2', '--job_name=ps'], None, 'give --worker_hosts'),
    (HOSTS + ['--logdir=l'], None, '--job_name=None is no job of the cluster; expected one of'),
    (HOSTS + ['--job_name=worker', '--task_index=2'], None, '--task_index=2 is none of the 2'),
    (HOSTS + ['--job_name=worker'], None, '--logdir is needed'),
    (['--ps_hosts=a', '--worker_hosts=b:2', '--job_name=ps'], None, "['a'] is no list of addr"),
    ([], '{', 'TF_CONFIG in the environment cannot be read'),
]


def places_of(role):
    """Returns the place that the example finds for each of PLACES, or what it complains of."""
    example = load_example()
    found = []
    for flags, config, _ in PLACES:
        config = config if config is None or isinstance(config, str) else json.dumps(config)
        os.environ.pop('TF_CONFIG', None)
        if config is not None:
            os.environ['TF_CONFIG'] = config
        try:
            place = example.find_place(example.parser().parse_args(flags))
        except example.PlaceError as error:
            found.append(str(error))
        else:
            number = None if place.job == 'ps' else place.number
            found.append((place.job, place.task, number))
    return found


def test_a_place_in_a_cluster_is_found_or_the_complaint_says_what_to_give():
    with Job(places_of, ps=0, workers=1) as job:
        ended = job.wait('worker', 0)
    assert ended.error is None, ended.log
    assert len(ended.value) == len(PLACES)
    for (flags, config, expected), found in zip(PLACES, ended.value):
        if isinstance(expected, str):
            assert expected in found, (flags, config)
        else:
            assert found == expected, (flags, config)


def test_a_bad_place_ends_the_run_with_the_usage_before_it_trains(tmp_path):
    done = start('--logdir', str(tmp_path), '--job_name=worker', script='slim_train_cluster.py')
    assert done.returncode == 2
    assert 'give --ps_hosts' in done.stdout and 'Traceback' not in done.stdout
    assert not list(tmp_path.iterdir())
