"""The last training episodes, by which a run is told to be as good as it is."""

from __future__ import annotations

from gossamer.record.window import Window


def test_after_a_resume_the_means_are_those_of_the_last_hundred_episodes_still() -> None:
    window = Window(2)
    for _ in range(150):
        window.add(0, 0.0, 1)
        window.add(1, 0.0, 1)
    again = Window(2)
    again.load(window.state())
    for _ in range(100):
        again.add(0, 10.0, 5)
        again.add(1, 20.0, 5)
    assert (again.mean_of(0), again.mean_of(1)) == (10.0, 20.0)
    assert again.mean() == 15.0
    assert [len(x.returns) for x in again.state()] == [100, 100], "no more is saved"
