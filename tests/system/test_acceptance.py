"""Arms that were measured are not measured again."""

import pytest

from tasks.errors import ServerGone
from tasks.system import acceptance
from tasks.system.acceptance import Arm, measure_arms


@pytest.fixture
def measured(monkeypatch):
    """Which arms were measured, and which of them fail."""
    names: list[str] = []

    def measure(run, name, *_):
        names.append(name)
        if name in failing:
            raise ServerGone("gone")
        return Arm(name=name, drafts=4, accepted_tokens=3, accepted_at=[2, 1, 0], histograms={"id": [1, 2, 1]})

    failing: set[str] = {"trained"}
    monkeypatch.setattr(acceptance, "measure_arm", measure)
    return names, failing


def test_a_second_try_measures_only_what_the_first_did_not(measured, tmp_path):
    names, failing = measured
    arguments = (None, tmp_path, dict.fromkeys(("none", "base", "trained")), [], tmp_path / "arms", print, print)
    with pytest.raises(ServerGone):
        measure_arms(*arguments)
    names.clear()
    failing.clear()
    arms = measure_arms(*arguments)
    assert (names, [arm.name for arm in arms]) == (["trained"], ["none", "base", "trained"])


def test_a_kept_arm_is_what_was_measured(measured, tmp_path):
    arguments = (None, tmp_path, {"base": None}, [], tmp_path / "arms", print, print)
    assert measure_arms(*arguments) == measure_arms(*arguments)
