"""What all stages want of each filesystem, and what a refusal says."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from flows.recipes import named
from tasks.system.disk import free_bytes, reserve_bytes
from tasks.system.plan.needs import Need, OnDisk, fixed_needs, largest_file
from tasks.system.plan.refusal import refusal
from tasks.system.plan.volumes import Space, Volume, by_volume, room_bytes
from tasks.system.plan.whole import make_plan
from tests.conftest import PROJECT
from tests.system.plans import GB, SERVED, TB, ground, kimi, plan, tokens_of

DATA = Path("/data")


def needs(*sizes: tuple[str, int, Path]) -> list[Need]:
    return [Need(stage, size, path, "") for stage, size, path in sizes]


def test_roots_on_one_filesystem_are_counted_together(tmp_path):
    groups = by_volume(needs(("a", 1, tmp_path / "x"), ("b", 2, tmp_path / "y" / "z")), Space(0.0))
    assert [group.need_bytes for group in groups] == [3]


@pytest.mark.fault("full-disk-in-every-stage")
def test_another_filesystem_is_counted_by_itself(tmp_path, small_volume):
    groups = by_volume(needs(("a", 1, tmp_path), ("b", 2, small_volume / "states")), Space(0.0))
    assert {group.volume.path: group.need_bytes for group in groups} == {tmp_path: 1, small_volume: 2}


def test_a_bind_mount_is_the_filesystem_that_it_shows(tmp_path, small_volume):
    (tmp_path / "bound").mkdir()
    subprocess.run(["mount", "--bind", str(small_volume), str(tmp_path / "bound")], check=True)
    try:
        groups = by_volume(needs(("a", 1, small_volume), ("b", 2, tmp_path / "bound")), Space(0.0))
        assert [group.need_bytes for group in groups] == [3]
    finally:
        subprocess.run(["umount", str(tmp_path / "bound")], check=True)


def test_a_link_to_another_filesystem_is_followed(tmp_path, small_volume):
    (tmp_path / "states").symlink_to(small_volume)
    groups = by_volume(needs(("a", 1, tmp_path / "trained"), ("b", 2, tmp_path / "states")), Space(0.0))
    assert [group.need_bytes for group in groups] == [1, 2]


def test_free_space_and_reserve_are_the_filesystems_own(small_volume):
    volume = Space(0.1).volume_of(small_volume / "not" / "there" / "yet")
    assert (volume.free_bytes, volume.reserve_bytes) == (free_bytes(small_volume), reserve_bytes(small_volume, 0.1))


def test_what_is_written_elsewhere_leaves_the_room_for_states_alone(tmp_path, small_volume):
    others = needs(("a", 10**9, tmp_path), ("b", 1000, small_volume))
    assert room_bytes(small_volume / "states", others, Space(0.0)) == free_bytes(small_volume) - 1000


def test_the_reserve_counts_against_what_fits():
    volume = Volume(DATA, free_bytes=100, reserve_bytes=10, device=0, basis="")
    space = Space(0.1, volume)
    fits = [by_volume(needs(("a", size, DATA)), space)[0].fits for size in (90, 91)]
    assert fits == [True, False]


def fixed(recipe, there) -> dict[str, int]:
    found = fixed_needs(recipe, recipe.target.snapshot, tokens_of(recipe, 25_000), there, DATA, None)
    return {need.stage: need.need_bytes for need in found}


def test_every_stage_that_writes_is_counted():
    assert set(fixed(kimi(), OnDisk())) == {"server-load", "drafter-download", "inference", "training", "evaluation"}


def test_weights_that_are_there_are_not_counted():
    assert "server-load" not in fixed(kimi(), SERVED)


def test_of_weights_that_are_half_there_the_rest_is_counted():
    assert fixed(kimi(), OnDisk(bytes_there={"server-load": 200 * GB}))["server-load"] == 340 * GB


def test_a_finished_stage_writes_nothing_more():
    there = OnDisk(finished=frozenset({"inference", "training"}))
    assert not {"inference", "training"} & set(fixed(kimi(), there))


def test_answers_in_the_journal_are_not_written_again():
    whole, half = fixed(kimi(), SERVED), fixed(kimi(), OnDisk(target_is_ready=True, answered_samples=12_500))
    # Journal and set take 11 bytes a token each; half of the journal is there.
    assert whole["inference"] - half["inference"] == 94_200_000 * 11 // 2


def test_checkpoints_that_are_there_are_not_written_again():
    whole, begun = fixed(kimi(), SERVED), fixed(kimi(), OnDisk(bytes_there={"training": GB}))
    assert whole["training"] - begun["training"] == GB


def test_a_drafter_in_a_folder_is_not_copied():
    recipe = kimi(drafter={"source": {"kind": "folder", "name": "/models/drafter"}})
    assert "drafter-download" not in fixed(recipe, SERVED)


@pytest.mark.parametrize(("arguments", "counted"), [([], True), (["--enforce-eager"], False)])
def test_the_compile_cache_is_counted_where_it_lies_unless_nothing_is_compiled(arguments, counted):
    recipe = kimi(server={"engine": {"arguments": arguments}})
    cache = Path("/home/me/.cache/vllm")
    found = fixed_needs(recipe, recipe.target.snapshot, tokens_of(recipe, 10), SERVED, DATA, cache)
    assert (cache in {need.path for need in found}) == counted


def test_a_plan_that_fits_is_not_refused():
    assert refusal(plan(), kimi()) == ""


@pytest.mark.fault("full-disk-in-every-stage")
def test_a_refusal_has_need_reserve_free_space_path_and_the_layout_that_fits():
    recipe = kimi(extraction={"layout": "bf16"})
    message = refusal(plan(recipe=recipe), recipe)
    assert message.startswith(
        "this run needs 5.46 TB and keeps 140 GB in reserve, but /data has 2.80 TB free:\n  drafter-download"
    )
    assert "  extraction         5.40 TB  bf16, 94,200,000 tokens, estimated\n" in message
    assert message.endswith("layout fp8+topk would fit whole, 2.06 TB (--set extraction.layout=fp8+topk).")


def test_a_refusal_names_windows_and_the_largest_number_of_samples():
    message = refusal(plan(50_000), kimi())
    assert "what would fit: bf16 in 5 windows; fp8 in 3 windows; fp8+topk in 2 windows; " in message
    assert "31,452 training samples as fp8+topk (--set prompts.training_samples=31452" in message


def test_the_number_of_samples_in_a_refusal_fits():
    recipe = kimi(extraction={"layout": "fp8+topk"}, prompts={"training_samples": 31_452})
    assert refusal(plan(31_452 + recipe.prompts.validation_samples, recipe=recipe), recipe) == ""


def test_where_no_number_of_samples_fits_it_says_so():
    assert "no number of samples fits" in refusal(plan(free=20 * GB), kimi())


def test_a_small_model_is_refused_in_its_own_units():
    recipe = named("smollm2-cpu", {"reserve_share": 0.0})
    found = plan(592, 1e9, recipe, OnDisk())
    # 492 MB of states, 269 MB of weights and a drafter's training do not go into 1 GB.
    assert "1.00 GB free" in refusal(found, recipe) and "would fit whole" in refusal(found, recipe)


def test_the_largest_file_of_the_reference_run_is_a_checkpoint():
    # 1,256,980,480 parameters x 12 bytes; a shard is closed at 4 GB.
    recipe = kimi()
    assert largest_file(recipe, recipe.target.snapshot, tokens_of(recipe, 25_000)) == (
        "a training checkpoint",
        15_083_765_760,
    )


def test_a_limit_on_file_sizes_is_told_with_the_file_that_is_too_large():
    program = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000_000, resource.RLIM_INFINITY))\n"
        "from tests.system.plans import *\n"
        "from tasks.system.plan.refusal import refusal\n"
        "print(refusal(make_plan(ground(kimi(), Space(0.0)), tokens_of(kimi(), 25_000), 'auto'), kimi()))\n"
    )
    told = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert told.stdout.startswith(
        "this run writes a training checkpoint of 15,083,765,760 B; this process may write files of 1,000,000,000 B"
    )


def test_without_a_limit_no_file_is_too_large():
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        pytest.skip("this shell has a limit")
    found = make_plan(ground(kimi(), Space(0.0)), tokens_of(kimi(), 10), "auto")
    assert found.too_large_file == ""


def test_in_windows_the_largest_window_is_what_the_volume_must_hold():
    found = plan(free=2.0 * TB, windows=0)
    (states,) = [need for need in found.needs if need.stage == "extraction"]
    # 24,936 training samples in two windows of 12,468, and 64 held out: 12,532 of 25,000.
    assert states.need_bytes == pytest.approx(2_702_138_500_000 * 12_532 / 25_000, abs=1)
    assert found.fits and refusal(found, kimi()) == ""
