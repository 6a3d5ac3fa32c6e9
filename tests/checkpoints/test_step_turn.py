"""Whose turn it is, where threads that copy leave a step no time of their own accord."""

import threading
import time

from slimguard.checkpoints.step_turn import StepTurn

STEPS = 20


class Copier(threading.Thread):
    """Copies again as soon as it has copied, as a Supervisor's thread does that is behind."""

    def __init__(self, turn, most=500):
        super().__init__(daemon=True)
        self.turn, self.most = turn, most
        self.copies = 0
        self.is_enough = False
        self.has_begun = threading.Event()

    def run(self):
        while self.copies < self.most and not self.is_enough:
            with self.turn.no_step():
                self.has_begun.set()
                time.sleep(0.002)
                self.copy()
                self.copies += 1

    def copy(self):
        """What it does besides."""


def steps_beside(copier, turn):
    """How often it copied until the steps were done."""
    step = turn.stepping(lambda: None)
    copier.start()
    copier.has_begun.wait()
    for _ in range(STEPS):
        step()
    copies = copier.copies
    copier.is_enough = True
    copier.join()
    return copies


def test_a_step_comes_between_two_copies():
    turn = StepTurn()
    assert steps_beside(Copier(turn), turn) < 500


def test_who_copies_within_its_copy_does_not_wait_for_the_step_that_waits_for_it(monkeypatch):
    class Saving(Copier):
        def copy(self):
            with self.turn.no_step(), self.turn.between_steps(lock):
                lock.release()

    turn, lock = StepTurn(), threading.RLock()
    monkeypatch.setattr('slimguard.checkpoints.step_turn._LONGEST_HOOK', 3600.0)
    training = threading.Thread(target=steps_beside, args=(Saving(turn), turn), daemon=True)
    training.start()
    training.join(60)
    assert not training.is_alive()


def test_who_waits_for_the_end_of_a_step_is_told_of_it(monkeypatch):
    turn = StepTurn()
    monkeypatch.setattr('slimguard.checkpoints.step_turn._LONGEST_HOOK', 3600.0)
    copier = Copier(turn, most=1)

    def step():
        copier.start()
        while not turn._copiers:
            time.sleep(0.002)
        assert not copier.has_begun.is_set()

    turn.stepping(step)()
    copier.join(60)
    assert copier.copies == 1


def test_the_loop_may_step_within_a_copy_of_its_own():
    turn, done = StepTurn(), []
    with turn.no_step():
        turn.stepping(lambda: done.append(turn.is_in_step))()
    assert done == [True]
