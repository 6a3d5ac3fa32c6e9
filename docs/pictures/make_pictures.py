"""Makes the pictures of the docs: loss.png, and report.png if there is Chromium.

  python docs/pictures/make_pictures.py

loss.png: the digits of examples/slim_train.py with one pixel of every tenth batch NaN, trained with
plain tf-slim and with slimguard. report.png: the page that `python -m slimguard report` writes for
a training with one such batch. Needs the extras `examples` and `report`.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / 'examples'
sys.path.insert(0, str(EXAMPLES))
import slim_train  # noqa: E402
from slim_train import np, slim, slimguard, tf, tf1  # noqa: E402

STEPS = 300
ONE_IN_ALL = 200  # of the batches of so many steps, one is bad then


def losses_of(train_op, hooks, logdir):
    """Trains, and returns the loss of each step."""
    losses = []
    hooks = [*hooks, tf1.train.StopAtStepHook(last_step=STEPS)]
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=logdir, hooks=hooks, log_step_count_steps=None
    ) as session:
        while not session.should_stop():
            losses.append(session.run(train_op))
    return losses


def train(guarded, logdir, nan_every):
    """Returns the losses, and the accuracy and the number of non-finite variables at the end."""
    train_data, test_data = slim_train.load_data()
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        images, labels = slim_train.next_batch(*train_data, nan_every=nan_every)
        logits = slim_train.digits_net(images, is_training=True)
        tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        loss = tf1.losses.get_total_loss()
        optimizer = tf1.train.MomentumOptimizer(slim_train.learning_rate(), 0.9)
        if guarded:
            train_op = slimguard.create_train_op(loss, optimizer, check_numerics=False)
            hooks = [slimguard.NanLossHook(loss, on_nan='skip', logdir=logdir)]
            summary = tf1.summary.scalar('loss', loss)
            hooks.append(tf1.train.SummarySaverHook(5, output_dir=logdir, summary_op=summary))
        else:
            train_op = slim.learning.create_train_op(loss, optimizer, check_numerics=False)
            hooks = []
        losses = losses_of(train_op, hooks, logdir)
    return (losses, *slim_train.evaluate(*test_data, tf1.train.latest_checkpoint(logdir)))


def draw(plain, guarded, path):
    """Draws both losses. A step whose loss is NaN has no point."""
    figure, axes = pyplot.subplots(figsize=(8, 3.4), dpi=110)
    for name, color, width, run in [
        ('slimguard', '#1f6f54', 1.4, guarded),
        ('plain tf-slim', '#c0392b', 2.6, plain),
    ]:
        losses, accuracy, non_finite = run
        words = '%s: test accuracy %.2f, %d variables with NaN' % (name, accuracy, non_finite)
        print(words)
        points = [(step, loss) for step, loss in enumerate(losses) if np.isfinite(loss)]
        axes.plot(*zip(*points), color=color, linewidth=width, label=words)
    if len(points) < len(losses):  # of the plain training, drawn last
        axes.plot(*points[-1], marker='X', markersize=10, color=color)
        axes.annotate(
            'from here on the loss is NaN',
            points[-1],
            xytext=(14, 10),
            textcoords='offset points',
            color=color,
        )
    axes.set(xlabel='batch (every tenth has one NaN pixel)', ylabel='loss', ylim=(0, None))
    axes.legend(loc='center right', frameon=False)
    for side in ('top', 'right'):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(str(path))


def photograph(page, path):
    """Takes the picture of a page in Chromium; returns whether there is one."""
    names = ('chromium', 'chromium-browser', 'google-chrome')
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        return False
    options = ['--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars']
    options += ['--window-size=1280,1640', '--screenshot=%s' % path]
    subprocess.run([browser, *options, page.as_uri()], check=True, stderr=subprocess.DEVNULL)
    return True


def main():
    tf1.disable_v2_behavior()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        plain = train(False, str(folder / 'plain'), nan_every=10)
        guarded = train(True, str(folder / 'guarded'), nan_every=10)
        draw(plain, guarded, HERE / 'loss.png')
        train(True, str(folder / 'digits'), nan_every=ONE_IN_ALL)
        page = folder / 'report.html'
        command = [sys.executable, '-m', 'slimguard', 'report', str(folder / 'digits')]
        subprocess.run([*command, '--output', str(page)], check=True)
        text = page.read_text().replace('%s/' % HERE.parents[1], '')  # whose machine it is
        page.write_text(text.replace('%s/' % folder, '/runs/'))
        if not photograph(page, HERE / 'report.png'):
            print('There is no Chromium, so report.png stays as it is.')


if __name__ == '__main__':
    main()
