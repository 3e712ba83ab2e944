"""The report's figures and what people read of them."""

import pytest

from tasks.recipe import Evaluation
from tasks.system.acceptance import Arm, differing_share
from tasks.system.report import build_report, markdown_report, table_rows
from tasks.system.verdict import judge

ANSWERS = {"a": [1, 2, 3], "b": [4, 5], "c": [6], "d": [7, 8]}


def arm(name: str, **changed: list[int]) -> Arm:
    """An arm with the same answers but for these."""
    histograms = {} if name == "none" else {sample: [1, 1] for sample in ANSWERS}
    return Arm(
        name=name,
        drafts=8,
        accepted_tokens=4,
        accepted_at=[] if name == "none" else [4],
        tokens_per_second=100.0,
        answers={**ANSWERS, **changed},
        histograms=histograms,
    )


def report_of(base: Arm, trained: Arm, tmp_path):
    spec = Evaluation()
    return build_report(
        [arm("none"), base, trained], judge(base.histograms, trained.histograms, spec), spec, 4, tmp_path / "best"
    )


@pytest.mark.fault("answers-differ")
def test_the_share_of_greedy_answers_that_differ_is_in_the_table(tmp_path):
    rows = table_rows(report_of(arm("base", a=[1, 2, 9]), arm("trained", a=[1], b=[4]), tmp_path))
    assert [row["answers that differ"] for row in rows] == ["-", "25.0%", "50.0%"]


@pytest.mark.fault("answers-differ")
def test_the_written_report_says_it_too(tmp_path):
    text = markdown_report(report_of(arm("base"), arm("trained", c=[9]), tmp_path))
    assert "answers that differ" in text
    assert [line.split("|")[-2].strip() for line in text.splitlines() if line.startswith("| base ")] == ["0.0%"]
    assert [line.split("|")[-2].strip() for line in text.splitlines() if line.startswith("| trained ")] == ["25.0%"]


@pytest.mark.fault("answers-differ")
def test_a_prompt_that_one_arm_did_not_answer_is_no_difference():
    trained = Arm(name="trained", answers={"a": [1, 2, 3], "x": [1]})
    assert differing_share(trained, arm("none")) == 0.0


@pytest.mark.fault("too-little-data")
def test_a_drafter_that_learned_nothing_is_said_to_be_not_better(tmp_path):
    nothing = {str(i): [20, 1, 0, 0] for i in range(40)}
    verdict = judge(nothing, nothing, Evaluation())
    assert verdict.verdict == "not-better"
    assert verdict.sentence(0.95).startswith("The trained drafter is not better than its base: acceptance length +0.0")
