import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tasks import recipe
from tasks.errors import BadInput
from tasks.system.prompts import PromptSets, load_prompts

SHARED_DATA = Path(__file__).parents[2].parent / "shared" / "data"
LONE = "broken \ud83d half"


def spec(training: int = 1, validation: int = 1, evaluation: int = 2, seed: int = 0) -> recipe.Prompts:
    return recipe.Prompts(
        source="rows.jsonl",
        training_samples=training,
        validation_samples=validation,
        evaluation_samples=evaluation,
        seed=seed,
    )


def turn(role: Any, text: Any) -> dict[str, Any]:
    return {"from": role, "value": text}


def row(*turns: Any, **more: Any) -> dict[str, Any]:
    return {"conversations": list(turns), "source": "test", **more}


def good_rows(count: int) -> list[dict[str, Any]]:
    return [row(turn("human", f"Question {i}?"), turn("gpt", f"Answer {i}.")) for i in range(count)]


def write(folder: Path, rows: list[Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def prompts_of(sets: PromptSets) -> list[str]:
    return [p.messages[-1]["content"] for p in (*sets.evaluation, *sets.validation, *sets.training)]


def load_beside_good_rows(folder: Path, odd: dict[str, Any]) -> PromptSets:
    """Load four good rows and the odd one; all five are asked for only if the odd one is usable."""
    path = write(folder, [*good_rows(2), odd, *good_rows(4)[2:]])
    try:
        return load_prompts(spec(training=2), path)
    except BadInput:
        return load_prompts(spec(training=1), path)


SKIPPED = {
    "conversations missing": ({"source": "test"}, "no_conversations"),
    "conversations null": ({"conversations": None}, "no_conversations"),
    "conversations a string": ({"conversations": "Hello?"}, "conversations_not_list"),
    "conversations an object": ({"conversations": turn("human", "Hello?")}, "conversations_not_list"),
    "no turns": (row(), "no_human_turn"),
    "turn a string": (row("Hello?"), "turn_not_object"),
    "turn null": (row(None, turn("human", "Hello?")), "turn_not_object"),
    "role missing": (row({"value": "Hello?"}), "turn_keys_missing"),
    "text missing": (row({"from": "human"}), "turn_keys_missing"),
    "text null": (row(turn("human", None)), "turn_keys_missing"),
    "text a number": (row(turn("human", 7)), "text_not_string"),
    "text a list": (row(turn("human", ["Hello?"])), "text_not_string"),
    "unknown role first": (row(turn("tool", "42"), turn("human", "Hello?")), "unknown_role"),
    "role a list": (row(turn(["human"], "Hello?")), "unknown_role"),
    "system only": (row(turn("system", "Be brief.")), "no_human_turn"),
    "starts with gpt": (row(turn("gpt", "Which one?"), turn("human", "The red one.")), "starts_with_answer"),
    "gpt after system": (row(turn("system", "Hi"), turn("gpt", "So?"), turn("human", "Yes.")), "starts_with_answer"),
    "empty prompt": (row(turn("human", ""), turn("gpt", "Hello!")), "blank_prompt"),
    "blank prompt": (row(turn("human", " \n\t")), "blank_prompt"),
    "lone surrogate in prompt": (row(turn("human", LONE)), "lone_surrogate"),
    "lone surrogate in system": (row(turn("system", LONE), turn("human", "Hello?")), "lone_surrogate"),
    "duplicate": (good_rows(1)[0], "duplicate"),
}

USED = {
    "single message": row(turn("human", "Hello?")),
    "no source": {"conversations": [turn("human", "Hello?")]},
    "two humans in a row": row(turn("human", "Hello?"), turn("human", "Anybody?")),
    "human after a blank human": row(turn("human", ""), turn("human", "Hello?")),
    "human after a blank gpt": row(turn("gpt", ""), turn("human", "Hello?")),
    "human after a blank system": row(turn("system", " "), turn("human", "Hello?")),
    "blank answer": row(turn("human", "Hello?"), turn("gpt", "")),
    "lone surrogate in answer": row(turn("human", "Hello?"), turn("gpt", LONE)),
    "turn after the prompt is no object": row(turn("human", "Hello?"), 3),
    "unknown role after the prompt": row(turn("human", "Hello?"), turn("tool", "42")),
    "capital role": row(turn("Human", "Hello?")),
    "messages schema": {"messages": [{"role": "user", "content": "Hello?"}]},
    "both schemas, one null": {
        "conversations": None,
        "messages": [{"from": None, "value": None, "role": "user", "content": "Hello?"}],
    },
    "extra columns": row(turn("human", "Hello?"), score=0.5),
}


@pytest.mark.fault("bad-rows")
@pytest.mark.parametrize("odd, reason", SKIPPED.values(), ids=SKIPPED.keys())
def test_unusable_row_is_skipped_with_its_reason(tmp_path, odd, reason):
    assert load_beside_good_rows(tmp_path, odd).skipped == {reason: 1}


@pytest.mark.fault("bad-rows")
@pytest.mark.parametrize("odd", [odd for odd, _ in SKIPPED.values()], ids=SKIPPED.keys())
def test_unusable_row_costs_no_good_row(tmp_path, odd):
    assert sorted(prompts_of(load_beside_good_rows(tmp_path, odd))) == [f"Question {i}?" for i in range(4)]


@pytest.mark.fault("bad-rows")
@pytest.mark.parametrize("odd", USED.values(), ids=USED.keys())
def test_odd_row_with_a_safe_prompt_is_used(tmp_path, odd):
    assert "Hello?" in prompts_of(load_beside_good_rows(tmp_path, odd))


@pytest.mark.fault("changing-columns")
def test_columns_whose_type_changes_from_row_to_row_are_judged_row_by_row(tmp_path):
    """A column-wise reader would make text of the lists, or refuse the file, for the sake of one row."""
    odd = [
        {"conversations": "Hello?", "source": 1},
        {"conversations": {"from": "human", "value": "Hello?"}, "source": ["a"]},
        {"conversations": [["human", "Hello?"]], "source": None},
        row(turn("human", {"text": "Hello?"})),
        row(turn("human", "Hello?"), source={"name": "x"}),
    ]
    mixed = [mixed_row for pair in zip(odd, good_rows(5), strict=True) for mixed_row in pair]
    sets = load_prompts(spec(training=2), write(tmp_path, mixed))
    assert sets.skipped == {"conversations_not_list": 2, "turn_not_object": 1, "text_not_string": 1}
    assert all(isinstance(prompt.source, str) for prompt in (*sets.evaluation, *sets.validation, *sets.training))


def test_leading_system_turn_is_kept(tmp_path):
    path = write(tmp_path, [row(turn("system", f"Rule {i}."), turn("human", "Why?")) for i in range(4)])
    prompt = load_prompts(spec(), path).training[0]
    assert [m["role"] for m in prompt.messages] == ["system", "user"]


def test_two_system_turns_become_one(tmp_path):
    odd = row(turn("system", "Be brief."), turn("system", "Be kind."), turn("human", "Hello?"))
    sets = load_beside_good_rows(tmp_path, odd)
    systems = [p.messages[0]["content"] for p in sets.evaluation + sets.validation + sets.training if p.messages[1:]]
    assert systems == ["Be brief.\n\nBe kind."]


def test_text_is_not_stripped(tmp_path):
    odd = row(turn("human", "  def f(x):\n"))
    assert "  def f(x):\n" in prompts_of(load_beside_good_rows(tmp_path, odd))


def test_missing_source_is_named_unknown(tmp_path):
    path = write(tmp_path, [{"conversations": r["conversations"]} for r in good_rows(4)])
    assert {p.source for p in load_prompts(spec(), path).evaluation} == {"unknown"}


def test_lone_surrogate_in_source_is_replaced(tmp_path):
    path = write(tmp_path, [{**r, "source": "a\udc00"} for r in good_rows(4)])
    assert {p.source for p in load_prompts(spec(), path).evaluation} == {"a?"}


@pytest.mark.fault("bad-rows")
def test_lone_surrogate_as_raw_bytes_costs_only_its_row(tmp_path):
    path = write(tmp_path, good_rows(4))
    broken = json.dumps(row(turn("human", LONE)), ensure_ascii=False).encode("utf-8", "surrogatepass")
    path.write_bytes(broken + b"\n" + path.read_bytes())
    assert load_prompts(spec(), path).skipped == {"lone_surrogate": 1}


@pytest.mark.fault("resumed-with-other-settings")
def test_sample_id_is_the_sha256_of_the_canonical_messages(tmp_path):
    prompt = load_prompts(spec(), write(tmp_path, good_rows(4))).training[0]
    canonical = '[{"content":"' + prompt.messages[0]["content"] + '","role":"user"}]'
    assert prompt.sample_id == hashlib.sha256(canonical.encode()).hexdigest()[:16]


def test_sets_follow_the_hash_order_of_seed_and_id(tmp_path):
    sets = load_prompts(spec(training=4, validation=3, evaluation=2, seed=5), write(tmp_path, good_rows(20)))
    ids = []
    for i in range(20):
        canonical = json.dumps([{"content": f"Question {i}?", "role": "user"}], separators=(",", ":"))
        ids.append(hashlib.sha256(canonical.encode()).hexdigest()[:16])
    expected = sorted(ids, key=lambda sample_id: hashlib.sha256(f"5{sample_id}".encode()).hexdigest())[:9]
    assert [p.sample_id for p in (*sets.evaluation, *sets.validation, *sets.training)] == expected


def test_set_sizes_are_as_asked(tmp_path):
    sets = load_prompts(spec(training=7, validation=3, evaluation=5), write(tmp_path, good_rows(20)))
    assert [len(sets.training), len(sets.validation), len(sets.evaluation)] == [7, 3, 5]


def test_sets_are_disjoint(tmp_path):
    sets = load_prompts(spec(training=12, validation=4, evaluation=4), write(tmp_path, good_rows(20)))
    assert len(set(prompts_of(sets))) == 20


@pytest.mark.fault("resumed-with-other-settings")
def test_growing_training_keeps_everything_else(tmp_path):
    path = write(tmp_path, good_rows(40))
    small, large = load_prompts(spec(training=5), path), load_prompts(spec(training=30), path)
    assert (large.evaluation, large.validation, large.training[:5]) == (
        small.evaluation,
        small.validation,
        small.training,
    )


@pytest.mark.fault("resumed-with-other-settings")
def test_order_of_the_file_does_not_matter(tmp_path):
    rows = good_rows(30)
    first = load_prompts(spec(training=10), write(tmp_path, rows))
    assert load_prompts(spec(training=10), write(tmp_path, rows[::-1])) == first


def test_another_seed_draws_another_sample(tmp_path):
    path = write(tmp_path, good_rows(40))
    assert load_prompts(spec(seed=1), path).evaluation != load_prompts(spec(seed=2), path).evaluation


def test_duplicate_never_reaches_two_sets(tmp_path):
    sets = load_prompts(spec(training=7), write(tmp_path, good_rows(10) * 3))
    assert (len(set(prompts_of(sets))), sets.skipped) == (10, {"duplicate": 20})


def test_rows_read_counts_skipped_rows_too(tmp_path):
    assert load_prompts(spec(), write(tmp_path, [*good_rows(6), row(), {}])).rows_read == 8


def test_blank_lines_are_not_rows(tmp_path):
    path = write(tmp_path, good_rows(4))
    path.write_text("\n" + path.read_text().replace("\n", "\n \n"))
    assert load_prompts(spec(), path).rows_read == 4


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path):
    path = write(tmp_path, good_rows(4))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_prompts(spec(), path).rows_read == 4


def test_last_line_without_a_newline_is_read(tmp_path):
    path = write(tmp_path, good_rows(4))
    path.write_text(path.read_text().rstrip("\n"))
    assert load_prompts(spec(), path).rows_read == 4


def test_unicode_line_separator_does_not_split_a_row(tmp_path):
    path = write(tmp_path, good_rows(3))
    odd = json.dumps(row(turn("human", "one\u2028two\u0085three")), ensure_ascii=False)
    path.write_text(path.read_text() + odd + "\n")
    assert "one\u2028two\u0085three" in prompts_of(load_prompts(spec(), path))


@pytest.mark.parametrize(
    "line",
    [b'{"conversations": [', b"hello", b"\xff\xfe{}", b"[" * 100_000],
    ids=["torn", "words", "not utf-8", "nested too deep"],
)
def test_line_that_is_no_json_is_named_by_file_and_number(tmp_path, line):
    path = write(tmp_path, good_rows(4))
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(BadInput, match=r"rows\.jsonl, line 5: not JSON"):
        load_prompts(spec(), path)


@pytest.mark.parametrize("value", [[], "text", 3, None])
def test_line_that_is_no_object_is_named_by_file_and_number(tmp_path, value):
    path = write(tmp_path, [*good_rows(2), value])
    with pytest.raises(BadInput, match=r"rows\.jsonl, line 3: a JSON object was needed"):
        load_prompts(spec(), path)


@pytest.mark.fault("bad-rows")
def test_too_few_rows_says_needed_found_skipped_and_what_to_do(tmp_path):
    path = write(tmp_path, [*good_rows(7), good_rows(1)[0], row(), row()])
    with pytest.raises(BadInput) as caught:
        load_prompts(spec(training=10, validation=2, evaluation=3), path)
    assert str(caught.value) == (
        f"{path}: 15 usable prompts were needed (10 training, 2 validation, 3 evaluation), "
        "found 7 in 10 rows. Skipped: duplicate 1, no_human_turn 2. "
        "Name a file with more prompts, or lower prompts.training_samples to 2."
    )


def test_exactly_enough_rows_are_enough(tmp_path):
    assert len(prompts_of(load_prompts(spec(training=4), write(tmp_path, good_rows(7))))) == 7


def test_too_few_for_the_held_out_sets_says_to_lower_them_too(tmp_path):
    with pytest.raises(BadInput, match=r"or lower prompts\.training_samples, prompts\.validation_samples and"):
        load_prompts(spec(), write(tmp_path, good_rows(3)))


def test_empty_file_has_no_prompts(tmp_path):
    with pytest.raises(BadInput, match=r"4 usable prompts were needed .* found 0 in 0 rows\. Skipped: none"):
        load_prompts(spec(), write(tmp_path, []))


def test_missing_file_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match=r"none\.jsonl: cannot be read \(No such file or directory\)"):
        load_prompts(spec(), tmp_path / "none.jsonl")


def test_folder_is_bad_input(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(BadInput, match="cannot be read"):
        load_prompts(spec(), tmp_path / "folder.jsonl")


@pytest.mark.parametrize("name", ["mlabonne/open-perfectblend", "rows.json", "rows.parquet"])
def test_other_suffixes_are_refused_with_what_to_do(name):
    with pytest.raises(BadInput, match=r"only a \.jsonl file is read, and hub datasets are not yet\. Save the rows"):
        load_prompts(spec(), Path(name))


@pytest.mark.parametrize("name, rows", [("specbench_200.jsonl", 200), ("gsm8k_train_1500.jsonl", 1500)])
def test_real_rows_are_all_usable(name, rows):
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip("the shared data is not there")
    sets = load_prompts(spec(training=100), path)
    assert (sets.rows_read, sum(n for reason, n in sets.skipped.items() if reason != "duplicate")) == (rows, 0)


def test_real_chats_of_many_turns_are_all_usable(tmp_path):
    path = SHARED_DATA / "fastchat_dummy_500.json"
    if not path.exists():
        pytest.skip("the shared data is not there")
    chats = json.loads(path.read_text())
    first_turns = {chat["conversations"][0]["value"] for chat in chats}
    sets = load_prompts(spec(), write(tmp_path, chats))
    assert sets.skipped == {"duplicate": len(chats) - len(first_turns)}
