"""`hero-run ls`, `verify` and `clean` as people type them: nothing is deleted that was not named and asked for."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from flows.cli import main
from flows.locks import only_run_on
from tasks.extraction import captured
from tasks.system.lock_holder import Holder
from tasks.system.manifest import MANIFEST_NAME
from tasks.system.run import product_of
from tests.system.small_data_root import fill, flip_byte, small_run

OLD = (1, 1)


def files_of(data_root: Path) -> dict[str, bytes]:
    """Everything but the lock, which a command may make."""
    paths = (path for path in data_root.rglob("*") if path.is_file() and path.name != "run.lock")
    return {str(path.relative_to(data_root)): path.read_bytes() for path in paths}


@pytest.fixture
def called(capsys):
    """Call a command; its exit code and what it said."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def stages(tmp_path):
    """The demo's stages, finished, and a training of old that no recipe and no recent run needs."""
    fill(small_run(tmp_path, "old", training={"epochs": 5}))
    os.utime(tmp_path / "runs" / "old.txt", OLD)
    return fill(small_run(tmp_path))


def test_the_commands_need_neither_prefect_nor_torch(tmp_path, stages):
    probe = (
        "import sys; from flows.cli import main\n"
        "for words in ('ls', 'verify', 'verify --discard', 'clean --states', 'clean --states --yes'):\n"
        "    assert main([*words.split(), '--data-root', sys.argv[1]]) == 0, words\n"
        "print(sorted({'prefect', 'torch'} & set(sys.modules)))"
    )
    call = subprocess.run([sys.executable, "-c", probe, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True)
    assert call.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["ls", "verify", "clean"])
def test_a_data_root_that_is_not_there_is_told(called, tmp_path, command):
    code, _, error = called(command, "--data-root", tmp_path / "none")
    assert code == 1
    assert f"the data root {tmp_path / 'none'} was needed, but there is no such folder" in error


@pytest.mark.parametrize("command", ["ls", "verify", "clean"])
def test_a_recipe_names_its_data_root(called, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".hero" / "data").mkdir(parents=True)
    code, out, _ = called(command, "smollm2-cpu", "--json")
    assert code == 0 and (command == "verify" or str(tmp_path / ".hero" / "data") in out)


def test_without_a_name_the_data_roots_that_exist_are_listed(called, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(small_run(tmp_path / ".hero" / "data"))
    code, out, _ = called("ls")
    assert code == 0 and str(tmp_path / ".hero" / "data") in out.splitlines()


def test_without_any_data_root_that_is_told(called, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flows.store_cli.RECIPES", {"smollm2-cpu": None})
    code, _, error = called("ls")
    assert code == 1 and "--data-root DIR" in error


def test_an_unknown_recipe_is_told(called):
    code, _, error = called("clean", "nope")
    assert code == 1 and "there is no recipe 'nope'" in error


def test_ls_tells_of_every_stage_its_bytes_its_runs_and_who_needs_it(called, tmp_path, stages):
    code, out, _ = called("ls", "--data-root", tmp_path)
    row = next(line for line in out.splitlines() if stages["responses"].digest in line)
    size = sum(path.stat().st_size for path in stages["responses"].folder.iterdir())
    assert code == 0
    assert row.split()[:5] == ["responses", stages["responses"].digest, "complete", f"{size / 1000:.3g}", "kB"]
    assert "smollm2-cpu  smollm2-cpu-20261201-101010 and 1 more  592 samples, 100,000 tokens" in row


def test_ls_tells_what_can_go(called, tmp_path, stages):
    _, out, _ = called("ls", "--data-root", tmp_path)
    assert f"can go: hero-run clean --data-root {tmp_path}" in out
    assert sum("no one  " in line for line in out.splitlines()) == 2


def test_ls_fits_a_wide_terminal(called, tmp_path, stages):
    _, out, _ = called("ls", "--data-root", tmp_path)
    table = [line for line in out.splitlines() if line.split(" ")[0] in ("stage", "targets", "states", "trained")]
    assert max(map(len, table)) <= 160


def test_ls_as_json_is_one_document(called, tmp_path, stages):
    _, out, _ = called("ls", "--data-root", tmp_path, "--json")
    (report,) = json.loads(out)
    kinds = [stage["kind"] for stage in report["stages"] if stage["needed_by"]]
    assert kinds == ["targets", "drafters", "answers", "responses", "states", "trained", "evaluations"]


@pytest.mark.parametrize("command", ["ls", "verify", "clean"])
def test_looking_changes_nothing(called, tmp_path, stages, command):
    flip_byte(stages["responses"].folder / "responses.jsonl")
    before = files_of(tmp_path)
    called(command, "--data-root", tmp_path)
    assert files_of(tmp_path) == before and not (tmp_path / "run.lock").exists()


def test_verify_of_sound_stages_is_ok(called, tmp_path, stages):
    code, out, error = called("verify", "--data-root", tmp_path)
    assert code == 0 and f"{stages['states'].folder}: ok (" in out and "MB/s" in error


@pytest.mark.fault("bad-shard")
def test_verify_names_a_damaged_file_and_says_what_to_do(called, tmp_path, stages):
    flip_byte(stages["states"].folder / "shard-00000.safetensors")
    code, out, _ = called("verify", "--data-root", tmp_path)
    assert code == 1
    assert f"{stages['states'].folder}: damaged: 1 file" in out and "    shard-00000.safetensors: sha256 " in out
    assert "hero-run verify --discard" in out
    assert "run the recipe again: only that shard or stage is made anew" in out


@pytest.mark.fault("bad-shard")
def test_verify_takes_damage_out_of_the_way_when_asked(called, tmp_path, stages):
    shard = stages["states"].folder / "shard-00000.safetensors"
    flip_byte(shard)
    before = files_of(tmp_path)
    code, out, error = called("verify", "--data-root", tmp_path, "--discard")
    assert code == 1 and f"to be put right: {shard}" in error and f"deleted: {shard}" in out
    assert set(before) - set(files_of(tmp_path)) == {str(shard.relative_to(tmp_path))}


@pytest.mark.parametrize("chosen", ["states", "extraction", "digest"])
def test_verify_looks_at_chosen_stages_only(called, tmp_path, stages, chosen):
    flip_byte(stages["responses"].folder / "responses.jsonl")
    chosen = stages["states"].digest[:6] if chosen == "digest" else chosen
    code, out, _ = called("verify", "--data-root", tmp_path, "--stage", chosen, "--json")
    assert code == 0 and [stage["kind"] for stage in json.loads(out)] == ["states"]


def test_verify_of_a_stage_that_is_not_there_tells_which_are(called, tmp_path, stages):
    code, _, error = called("verify", "--data-root", tmp_path, "--stage", "shards")
    assert code == 1 and "is called shards. There is: targets/" in error


def test_clean_names_what_would_go_and_deletes_nothing(called, tmp_path, stages):
    before = files_of(tmp_path)
    code, out, _ = called("clean", "--data-root", tmp_path)
    assert code == 0 and out.rstrip().endswith("nothing was deleted: add --yes")
    assert out.count("no recipe and no kept run needs it; last used by old") == 2
    assert f"trained/{stages['trained'].digest}: needed by recipe smollm2-cpu" in out
    assert files_of(tmp_path) == before


def test_clean_deletes_what_it_named_and_nothing_else(called, tmp_path, stages):
    before = files_of(tmp_path)
    _, named_as, _ = called("clean", "--data-root", tmp_path, "--json")
    paths = [item["path"] for item in json.loads(named_as)[0]["goes"]]
    code, out, _ = called("clean", "--data-root", tmp_path, "--yes")
    gone = {str(tmp_path / name) for name in set(before) - set(files_of(tmp_path))}
    assert code == 0 and gone and all(f"deleting {path} (" in out for path in paths)
    assert {path for path in gone if not path.startswith(tuple(paths))} == set()
    assert not any(Path(path).exists() for path in paths)


def test_clean_tells_how_much_it_freed(called, tmp_path, stages):
    before = sum(map(len, files_of(tmp_path).values()))
    _, out, _ = called("clean", "--data-root", tmp_path, "--yes", "--json")
    assert json.loads(out)[0]["freed_bytes"] == before - sum(map(len, files_of(tmp_path).values()))


def test_after_cleaning_nothing_can_go(called, tmp_path, stages):
    called("clean", "--data-root", tmp_path, "--yes")
    assert called("clean", "--data-root", tmp_path)[1].rstrip().endswith("nothing can go.")


def test_clean_keeps_the_products_of_a_recent_run_with_changed_fields(called, tmp_path, stages):
    other = fill(small_run(tmp_path, "changed", training={"epochs": 7}))
    called("clean", "--data-root", tmp_path, "--yes")
    assert other["trained"].manifest() is not None


def test_clean_forgets_older_runs_with_their_logs_when_asked(called, tmp_path, stages):
    for name in ("old", "smollm2-cpu-20261201-101010"):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / "server.log").write_text("log")
    for path in [tmp_path / "logs" / "old", tmp_path / "logs" / "old" / "server.log"]:
        os.utime(path, OLD)
    called("clean", "--data-root", tmp_path, "--yes")
    assert (tmp_path / "logs" / "old").exists()
    called("clean", "--data-root", tmp_path, "--yes", "--keep-runs", 1)
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["smollm2-cpu-20261201-101010"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["smollm2-cpu-20261201-101010.txt"]


@pytest.mark.parametrize("name", ["a.safetensors.partial", "shard-00000.safetensors.corrupt", ".hub/x.incomplete"])
def test_clean_removes_half_written_files_that_are_older_than_a_day(called, tmp_path, stages, name):
    old, young = stages["trained"].folder / name, stages["states"].folder / name
    for path in (old, young):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    os.utime(old, OLD)
    called("clean", "--data-root", tmp_path, "--yes")
    assert (old.exists(), young.exists()) == (False, True)


def test_clean_removes_records_of_stages_that_are_gone_and_only_those(called, tmp_path, stages):
    here, gone = stages["trained"].digest, "0" * 16
    records = {
        f"generations/training-{here}": "aaaaaaaa",
        f"generations/training-{gone}": "bbbbbbbb",
        f"refreshed/id-1-training-{here}": "",
        f"refreshed/id-1-training-{gone}": "",
        f"results/training-{here}-aaaaaaaa": "the newest",
        f"results/training-{here}-cccccccc": "renewed since",
        f"results/training-{gone}-bbbbbbbb": "",
        "results/not-ours": "",
    }
    for name, text in records.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    called("clean", "--data-root", tmp_path, "--yes")
    assert {name for name in records if (tmp_path / name).exists()} == {
        f"generations/training-{here}",
        f"refreshed/id-1-training-{here}",
        f"results/training-{here}-aaaaaaaa",
        "results/not-ours",
    }


@pytest.mark.parametrize("count", ["-1", "x", "1.5"])
def test_a_number_of_runs_that_is_none_is_told(capsys, tmp_path, count):
    with pytest.raises(SystemExit):
        main(["clean", "--data-root", str(tmp_path), f"--keep-runs={count}"])
    assert f"a number of runs was needed, 0 or more; found '{count}'" in capsys.readouterr().err


def test_clean_leaves_states_alone_unless_asked(called, tmp_path, stages):
    called("clean", "--data-root", tmp_path, "--yes")
    assert stages["states"].manifest() is not None


def test_clean_consumes_states_whose_training_is_finished(called, tmp_path, stages):
    run, before = small_run(tmp_path), stages["states"].manifest()
    code, out, _ = called("clean", "--data-root", tmp_path, "--yes", "--states")
    assert code == 0 and f"consuming {stages['states'].folder} (" in out
    assert [path.name for path in stages["states"].folder.iterdir()] == ["consumed.json"]
    assert captured(run, product_of(stages["responses"]), product_of(stages["drafters"])) == before


def test_clean_does_not_touch_states_whose_training_is_not_finished(called, tmp_path, stages):
    (stages["trained"].folder / MANIFEST_NAME).unlink()
    _, out, _ = called("clean", "--data-root", tmp_path, "--yes", "--states")
    assert stages["states"].manifest() is not None
    assert "not used up: " in out and f"trained/{stages['trained'].digest} is not finished" in out


def test_consumed_states_and_what_was_made_of_them_stay(called, tmp_path, stages):
    called("clean", "--data-root", tmp_path, "--yes", "--states")
    called("clean", "--data-root", tmp_path, "--yes", "--states", "--keep-runs", 0)
    assert stages["states"].consumed() and stages["trained"].manifest() and stages["evaluations"].manifest()


@pytest.mark.fault("two-runs-at-once")
@pytest.mark.parametrize("command", ["clean --yes", "verify --discard"])
def test_nothing_is_deleted_while_a_run_uses_the_data_root(called, tmp_path, stages, command):
    flip_byte(stages["states"].folder / "shard-00000.safetensors")
    before = files_of(tmp_path)
    with only_run_on(tmp_path, Holder.me("id", "night-run", tmp_path)):
        code, _, error = called(*command.split(), "--data-root", tmp_path)
    assert code == 1 and f"night-run (process {os.getpid()}" in error and "Wait until it has ended" in error
    assert files_of(tmp_path) == before


def test_no_run_starts_while_something_is_deleted(tmp_path, stages, monkeypatch, called):
    def refused(removal):
        with (tmp_path / "run.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tried.append(removal)
        return 0

    tried = []
    monkeypatch.setattr("flows.store_cli.remove", refused)
    called("clean", "--data-root", tmp_path, "--yes")
    assert tried


def test_clean_removes_a_link_and_not_what_it_points_to(called, tmp_path, stages):
    unneeded = next(path for path in (tmp_path / "trained").iterdir() if path != stages["trained"].folder)
    shutil.move(unneeded, tmp_path / "elsewhere")
    unneeded.symlink_to(tmp_path / "elsewhere")
    _, out, _ = called("clean", "--data-root", tmp_path, "--yes")
    assert f"only the link goes, {tmp_path / 'elsewhere'} stays" in out
    assert not unneeded.is_symlink() and (tmp_path / "elsewhere" / MANIFEST_NAME).exists()


def test_clean_leaves_folders_alone_that_are_no_stages(called, tmp_path, stages):
    (tmp_path / "states" / "my-backup").mkdir()
    _, out, _ = called("clean", "--data-root", tmp_path, "--yes", "--keep-runs", 0)
    assert "states/my-backup: not a stage's folder" in out and (tmp_path / "states" / "my-backup").exists()


def test_clean_deletes_nothing_while_a_recipe_that_writes_there_cannot_be_followed(
    called, tmp_path, stages, monkeypatch
):
    source = {"source": {"kind": "folder", "name": str(tmp_path / "unplugged")}}
    recipe = replace(small_run(tmp_path, target=source).recipe, data_root=str(tmp_path))
    monkeypatch.setattr("flows.store_cli.named", lambda name: recipe)
    before = files_of(tmp_path)
    code, _, error = called("clean", "--data-root", tmp_path, "--yes")
    assert code == 1 and "Nothing was deleted. Put back what is missing" in error
    assert files_of(tmp_path) == before


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can look with another user's eyes")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ls", "states "),
        ("verify", "shard-00000.safetensors: it cannot be checked: Permission denied"),
        ("verify --discard", "left alone: "),
        ("clean", "nothing was deleted"),
        ("clean --yes", "could not be removed whole: [Errno 13] Permission denied"),
    ],
)
def test_what_may_not_be_read_or_deleted_is_told_without_a_traceback(capsys, words, said):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        stages = fill(small_run(root, training={"epochs": 5}))
        os.utime(root / "runs" / "smollm2-cpu-20261201-101010.txt", OLD)
        (stages["states"].folder / "shard-00000.safetensors").chmod(0)
        (root / "run.lock").touch()
        (root / "run.lock").chmod(0o666)
        before = files_of(root)
        os.seteuid(65534)
        try:
            main([*words.split(), "--data-root", folder])
        finally:
            os.seteuid(0)
        captured_text = capsys.readouterr()
        assert said in captured_text.out + captured_text.err
        assert files_of(root) == before
