"""A few kills of the soak; `python tests/soak.py` does hundreds."""

from tests import soak


def test_whenever_it_is_killed_a_training_leaves_a_good_checkpoint_and_resumes(monkeypatch):
    lines = []
    kills = len(soak.KINDS)
    assert soak.soak(kills, seed=1, out=lines.append)['ok'] == kills, '\n'.join(lines)
