"""Steps get their turn even beside a thread that saves without a pause."""

import threading
import time

from slimguard.checkpoints.step_turn import StepTurn

STEPS = 20


class Saver(threading.Thread):
    """A thread that saves without a pause, as a Supervisor's thread does when it is late."""

    def __init__(self, turn, most=500):
        super().__init__(daemon=True)
        self.turn, self.most = turn, most
        self.saves = 0
        self.is_enough = False
        self.has_begun = threading.Event()

    def run(self):
        while self.saves < self.most and not self.is_enough:
            with self.turn.no_step():
                self.has_begun.set()
                time.sleep(0.002)
                self.beside()
                self.saves += 1

    def beside(self):
        """Called within each save; a subclass does more there."""


def steps_beside(saver, turn):
    """Runs `STEPS` steps beside a saver; returns how often it saved meanwhile."""
    step = turn.stepping(lambda: None)
    saver.start()
    saver.has_begun.wait()
    for _ in range(STEPS):
        step()
    saves = saver.saves
    saver.is_enough = True
    saver.join()
    return saves


def test_a_step_comes_between_two_saves():
    turn = StepTurn()
    assert steps_beside(Saver(turn), turn) < 500


def test_a_save_within_a_save_does_not_wait_for_the_step_that_waits_for_it(monkeypatch):
    class Nested(Saver):
        def beside(self):
            with self.turn.no_step():
                pass

    turn = StepTurn()
    monkeypatch.setattr('slimguard.checkpoints.step_turn._LONGEST_HOOK', 3600.0)
    training = threading.Thread(target=steps_beside, args=(Nested(turn), turn), daemon=True)
    training.start()
    training.join(300)
    assert not training.is_alive()


def test_who_waits_for_the_end_of_a_step_is_told_of_it(monkeypatch):
    turn = StepTurn()
    monkeypatch.setattr('slimguard.checkpoints.step_turn._LONGEST_HOOK', 3600.0)
    saver = Saver(turn, most=1)

    def step():
        saver.start()
        while not turn._saver:
            time.sleep(0.002)
        assert not saver.has_begun.is_set()

    turn.stepping(step)()
    saver.join(300)
    assert saver.saves == 1


def test_the_loop_may_step_within_a_save_of_its_own():
    turn, done = StepTurn(), []
    with turn.no_step():
        turn.stepping(lambda: done.append(True))()
    assert done == [True]
