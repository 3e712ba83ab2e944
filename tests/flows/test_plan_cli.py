"""`hero-run plan`: what it prints, and that it needs nothing but Python."""

import json
import subprocess
import sys

import pytest

from flows.cli import main
from tasks.system.manifest import MANIFEST_NAME
from tests.conftest import PROJECT
from tests.system.small_data_root import fill, small_run

REFERENCE = ["plan", "kimi-k25", "--samples", "10000,25000,50000", "--free", "2.8TB"]


def printed(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def planned(capsys, *arguments: str) -> dict:
    return json.loads(printed(capsys, *arguments, "--json"))


def words(line: str) -> list[str]:
    return line.split()


@pytest.fixture
def reference(capsys) -> str:
    return printed(capsys, *REFERENCE)


@pytest.mark.parametrize(
    "row",
    [
        "25,000 94.2M bf16 57,349 5.40 TB 57.4 GB 3 1.81 TB",
        "25,000 94.2M fp8 28,685 2.70 TB 57.4 GB 2 1.35 TB",
        "25,000 94.2M fp8+topk 21,911 2.06 TB 57.4 GB 1 2.06 TB <",
        "10,000 37.7M bf16 57,349 2.16 TB 56.2 GB 1 2.16 TB <",
        "50,000 188M fp8+topk 21,911 4.13 TB 74.6 GB 2 2.07 TB <",
    ],
)
def test_every_number_of_samples_and_layout_has_one_line(reference, row):
    assert row.split() in [words(line) for line in reference.splitlines()]


@pytest.mark.parametrize(
    "row",
    [
        "25,000 22 min 13.5 h 22 min 9.5 h 5.8 h 1.1 h 34 min 31.2 h 28.8 h",
        "10,000 22 min 5.4 h 22 min 3.8 h 2.3 h 1.1 h 34 min 13.9 h 11.5 h",
    ],
)
def test_the_hours_of_every_stage_are_on_one_line(reference, row):
    assert row.split() in [words(line) for line in reference.splitlines()]


@pytest.mark.parametrize(
    "line",
    [
        "disk: /data/hero-run is not on this machine; 2.80 TB free (given with --free), 140 GB of it stay in reserve, "
        "the target's weights taken to be there",
        "lengths: stated: 782 prompt and 2,986 answer tokens a sample",
        "  evaluation, 3 x 200 prompts: 614,400 tokens at 300 tok/s, assumed",
        "training on 1 card or 8: 5.8 h or 1.9 h to 2.9 h (2 to 3 times faster, stated); this run trains on one",
        "local or rented: 31.2 h here, 5.5 h on 8 x B300, NVLink, rented (kimi-k25-b300), 164 to 273 dollars at 30 to "
        "50 dollars an hour; its throughputs are assumptions, and getting the weights there is not counted",
        "one more copy of the weights, 540 GB, does not fit beside all that: 1.43 GB are missing",
        "warning: the answer length is the risk: its mean, 2,986 tokens, is only stated; at 1.5 times that fp8+topk "
        "whole becomes fp8 in 2 windows.",
        "  a request in flight holds about 2,574 tokens: of 200 asked at once, 73 run and 127 queue",
        "  with fp8 and context parallel 1: 450K tokens as users report, 413K by formula (8% below), 174 run",
    ],
)
def test_the_questions_of_the_reference_run_are_answered(reference, line):
    assert line in reference.splitlines()


def test_it_says_why_a_layout_is_taken(reference):
    (line,) = [line for line in reference.splitlines() if line.startswith("25,000 samples: ")]
    assert line.startswith("25,000 samples: fp8+topk whole: the most faithful layout that fits whole")
    assert "fp8 whole, 2.70 TB, would leave 40.5 GB, less than the reserve of 140 GB" in line


def test_a_number_of_samples_that_does_not_fit_is_said_and_exits_zero(capsys):
    text = printed(capsys, "plan", "kimi-k25", "--samples", "50000", "--free", "80GB")
    (line,) = [line for line in text.splitlines() if line.startswith("50,000 samples: ")]
    assert line.endswith("As it is, it is refused")


def test_the_table_is_there_for_longer_answers(reference):
    rows = [" ".join(words(line)) for line in reference.splitlines()]
    assert "x 1.5 132M 7.54 TB 3.77 TB 2.88 TB fp8 in 2 windows 44.4 h" in rows
    assert "x 2 169M 9.68 TB 4.84 TB 3.70 TB fp8 in 2 windows 57.2 h" in rows


def test_without_free_space_given_the_recipes_own_is_planned_for(capsys):
    assert "2.80 TB free (stated in the recipe)" in printed(capsys, "plan", "kimi-k25")


def test_without_samples_given_the_recipes_own_stand_between_fewer_and_more(capsys):
    counts = [plan["samples"] for plan in planned(capsys, "plan", "kimi-k25")["plans"]]
    assert counts == [10_000, 25_000, 50_000]


def test_the_recipes_own_number_is_always_planned(capsys):
    counts = [plan["samples"] for plan in planned(capsys, "plan", "kimi-k25", "--samples", "7000")["plans"]]
    assert counts == [7_000, 25_000]


def test_the_json_has_the_same_figures(capsys):
    report = planned(capsys, *REFERENCE)
    (plan,) = [plan for plan in report["plans"] if plan["samples"] == 25_000]
    assert (plan["tokens"], plan["chosen_layout"], plan["chosen_windows"], plan["fits"]) == (
        94_200_000,
        "fp8+topk",
        1,
        True,
    )
    assert {layout["layout"]: layout["states_bytes"] for layout in plan["layouts"]} == {
        "bf16": 5_402_287_300_000,
        "fp8": 2_702_138_500_000,
        "fp8+topk": 2_064_027_700_000,
    }
    hours = {(line["stage"], line["is_load"]): line["hours"] for line in plan["hours"]}
    assert hours["inference", False] == pytest.approx(13.5, abs=0.001)
    assert report["memory"]["running_requests"] == 73
    assert report["rented"]["costs_dollars"] == pytest.approx([163.7, 272.84], abs=0.01)


def test_the_memory_of_somebody_elses_server_is_not_planned(capsys):
    report = planned(capsys, *REFERENCE, "--set", "server.endpoint=http://127.0.0.1:8000")
    assert report["memory"] is None and not [w for w in report["warnings"] if "in flight" in w]


def test_the_jsons_keys_are_stable(capsys):
    report = planned(capsys, *REFERENCE)
    assert list(report) == [
        "recipe", "machine", "data_root", "target", "volume", "lengths", "rates", "prices_per_hour_dollars", "nights",
        "plans",
        "recipe_plan", "longer_answers", "memory", "training_on_all_gpus", "rented",
        "room_for_one_more_copy_of_the_weights_bytes", "warnings",
    ]  # fmt: skip
    assert list(report["plans"][0]) == [
        "samples", "prompt_tokens", "answer_tokens", "tokens", "tokens_basis", "layouts", "chosen_layout",
        "chosen_windows", "reason", "needs", "need_bytes", "fits", "hours", "total_hours", "costs_dollars",
        "in_nights",
    ]  # fmt: skip


NIGHTS = [*REFERENCE, "--nights", "20:00-07:30"]


def test_the_reference_run_takes_three_nights(capsys):
    text = printed(capsys, *NIGHTS)
    assert (
        "  25,000 samples: 3 nights of 11.5 h, broken off at inference 81 %, extraction 85 %, done after 9.3 h of the "
        "last"
    ) in text.splitlines()


def test_the_nights_are_in_the_json(capsys):
    report = planned(capsys, *NIGHTS)
    assert report["nights"] == {"begin": "20:00", "end": "07:30", "hours": 11.5}
    assert report["recipe_plan"]["in_nights"] == {
        "count": 3,
        "broken_off": [{"stage": "inference", "done_share": 0.812}, {"stage": "extraction", "done_share": 0.848}],
        "last_hours": pytest.approx(9.3, abs=0.05),
    }


def test_without_nights_asked_for_there_are_none(capsys, reference):
    assert "night" not in reference and planned(capsys, *REFERENCE)["recipe_plan"]["in_nights"] is None


def test_nights_that_are_too_short_are_said_to_be(capsys):
    text = printed(capsys, *REFERENCE, "--nights", "23:50-00:10")
    assert "  25,000 samples: a night is too short for a load of the target and the work that needs it" in text


@pytest.mark.parametrize("text", ["20:00", "20:00-24:00", "8-9", "-"])
def test_nights_that_are_none_are_refused(capsys, text):
    with pytest.raises(SystemExit):
        main([*REFERENCE, "--nights", text])
    assert f"two times of day were needed, such as 20:00-07:30; found {text!r}" in capsys.readouterr().err


def test_a_price_makes_a_cost_of_the_hours(capsys):
    report = planned(capsys, *REFERENCE, "--price-per-hour", "10")
    assert report["recipe_plan"]["costs_dollars"] == pytest.approx(
        [10 * report["recipe_plan"]["total_hours"]], abs=0.01
    )
    assert "312 dollars" in printed(capsys, *REFERENCE, "--price-per-hour", "10")


@pytest.mark.parametrize(("text", "free_bytes"), [("2.8TB", 2_800_000_000_000), ("500gb", 5 * 10**11), ("1TiB", 2**40)])
def test_sizes_are_decimal_unless_they_say_otherwise(capsys, text, free_bytes):
    assert planned(capsys, "plan", "kimi-k25", "--free", text)["volume"]["free_bytes"] == free_bytes


def test_fields_are_changed_as_for_a_run(capsys):
    report = planned(capsys, *REFERENCE, "--set", "extraction.layout=bf16")
    assert (report["recipe_plan"]["chosen_layout"], report["recipe_plan"]["fits"]) == ("bf16", False)


def test_the_demo_is_planned_on_this_machine(capsys, tmp_path):
    report = planned(capsys, "plan", "smollm2-cpu", "--data-root", str(tmp_path))
    assert report["data_root"] == {"path": str(tmp_path), "is_on_this_machine": True}
    assert report["volume"]["basis"] == "free now"
    assert report["recipe_plan"]["samples"] == 592
    assert {need["stage"] for need in report["recipe_plan"]["needs"]} >= {"server-load", "extraction", "training"}


def test_the_demos_kv_room_is_what_it_is_given(capsys, tmp_path):
    assert "93.2K tokens by formula (2.15 GB given to it, window 1,024)" in printed(
        capsys, "plan", "smollm2-cpu", "--data-root", str(tmp_path)
    )


def test_what_is_finished_on_the_data_root_is_not_planned_again(capsys, tmp_path):
    fill(small_run(tmp_path))
    report = planned(capsys, "plan", "smollm2-cpu", "--data-root", str(tmp_path))
    assert (report["recipe_plan"]["needs"], report["recipe_plan"]["total_hours"]) == ([], 0)


def test_lengths_come_from_earlier_answers_when_they_are_there(capsys, tmp_path):
    fill(small_run(tmp_path))
    report = planned(capsys, "plan", "smollm2-cpu", "--data-root", str(tmp_path), "--samples", "1184")
    # 592 samples of 40,000 prompt and 60,000 answer tokens.
    assert report["lengths"]["is_measured"]
    assert [plan["tokens"] for plan in report["plans"]] == [100_000, 200_000]


def test_planning_leaves_the_data_root_as_it_was(capsys, tmp_path):
    stages = fill(small_run(tmp_path))
    (stages["responses"].folder / MANIFEST_NAME).unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    printed(capsys, "plan", "smollm2-cpu", "--data-root", str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "hero-run: there is no recipe 'nope'. Recipes: kimi-k25, kimi-k25-b300, smollm2-cpu"),
        (["kimi-k25", "--samples", "64"], "so it must be more than 64; found 64"),
        (["kimi-k25", "--set", "training.epocs=2"], "recipe field 'training.epocs' does not exist"),
        (
            ["kimi-k25", "--set", 'server.engine.arguments=["--kv-cache-dtype=x"]'],
            "--kv-cache-dtype must be one of auto, bfloat16",
        ),
    ],
)
def test_a_wrong_call_is_one_clear_line(capsys, arguments, message):
    assert main(["plan", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--free", "lots", "a size was needed, such as 2.8TB, 500GB or 1TiB; found 'lots'"),
        ("--free", "3 XB", "a size was needed, such as 2.8TB, 500GB or 1TiB; found '3 XB'"),
        ("--samples", "10k", "numbers of samples were needed, such as 10000,25000; found '10k'"),
        ("--samples", "0", "numbers of samples were needed, such as 10000,25000; found '0'"),
        ("--price-per-hour", "cheap", "dollars an hour were needed, such as 40 or 2.5; found 'cheap'"),
    ],
)
def test_a_wrong_option_is_told_with_an_example(capsys, option, value, message):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "kimi-k25", option, value])
    assert message in capsys.readouterr().err


def test_it_imports_neither_torch_nor_prefect_and_opens_no_connection():
    program = (
        "import socket, sys\n"
        "from flows.cli import main\n"
        "def refuse(*a, **k): raise AssertionError('a connection was opened')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "assert main(sys.argv[1:]) == 0\n"
        "heavy = {'torch', 'prefect', 'vllm', 'openai', 'matplotlib', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    command = [sys.executable, "-c", program, *REFERENCE]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
