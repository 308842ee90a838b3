"""No phase begins with more than four silent seconds, and a batch log gets a line per minute."""

from itertools import pairwise

from mlhpc.common.timing.heartbeat import Heartbeat


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def reports_of(
    seconds: int, enter_at: dict[int, str], say_at: range = range(0)
) -> list[tuple[int, str, bool]]:
    """What a heartbeat reports, called once a second: (second, phase, whether it is printed)."""
    clock, reports = Clock(), []
    heart = Heartbeat(lambda phase, spent, printed: reports.append((phase, spent, printed)), clock)
    heart.stop()  # its thread: the test calls it instead
    seen = []
    for second in range(seconds):
        clock.now = 100.0 + second
        if phase := enter_at.get(second):
            heart.enter(phase)
        if second in say_at:
            heart.said()
        before = len(reports)
        heart.beat()
        seen += [(second, phase, printed) for phase, _, printed in reports[before:]]
    return seen


def test_a_long_phase_reports_after_four_seconds_and_then_less_often_up_to_once_a_minute() -> None:
    printed = [(second, phase) for second, phase, line in reports_of(250, {0: "init"}) if line]
    assert printed == [(second, "init") for second in (4, 12, 28, 60, 120, 180, 240)]


def test_short_phases_do_not_add_up_to_a_silence() -> None:
    phases = {second: f"phase {second}" for second in range(0, 60, 3)}
    printed = [second for second, _, line in reports_of(60, phases) if line]
    assert max(b - a for a, b in pairwise([0, *printed])) <= 5


def test_a_run_that_prints_its_epochs_prints_nothing_else() -> None:
    epochs = {second: f"epoch {second}" for second in range(0, 60, 3)}
    assert not any(line for _, _, line in reports_of(60, epochs, range(0, 60, 3)))


def test_watch_gets_an_event_every_five_seconds_of_any_phase() -> None:
    seconds = [second for second, _, _ in reports_of(61, {0: "train"})]
    assert seconds[0] <= 5 and max(b - a for a, b in pairwise(seconds)) <= 5
