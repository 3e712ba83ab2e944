"""The store on disk: round trip, formats, sizes. Needs torch, no vLLM."""

from dataclasses import replace

import pytest
import torch

from tasks.errors import BadProduct
from tasks.hidden_states.index import INDEX_NAME, read_index, sort_index
from tasks.hidden_states.layout import LAYOUTS, bytes_per_token, expected_store_bytes
from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.shards import ShardWriter
from tests.hidden_states.small_store import SAMPLES, STORE, STORES, make_sample, read_all, shard_files, write


def test_what_was_written_is_read(tmp_path):
    write(tmp_path, range(5))
    reader = StateReader(tmp_path)
    assert reader.store == STORE
    assert [entry.split for entry in reader.samples] == ["validation"] + ["training"] * 4
    for number, entry in enumerate(reader.samples):
        written, found = make_sample(number), reader.read(entry)
        assert found.token_ids_T.tolist() == written.token_ids
        assert found.token_ids_T.dtype == torch.int64
        assert found.loss_mask_T.tolist() == [False] * 10 + [True] * 10
        assert torch.equal(found.aux_TAD, written.states["aux"])
        assert torch.equal(found.teacher.final_TD, written.states["final"])


@pytest.mark.fault("norm-confusion")
@pytest.mark.parametrize("final_is_normed", [True, False])
def test_a_store_states_whether_its_final_state_is_normed(tmp_path, final_is_normed):
    write(tmp_path, store=replace(STORE, final_is_normed=final_is_normed))
    assert StateReader(tmp_path).store.final_is_normed is final_is_normed


@pytest.mark.fault("norm-confusion")
def test_normed_and_other_states_are_not_mixed(tmp_path):
    write(tmp_path, range(2))
    with pytest.raises(BadProduct, match=r"final_is_normed=True.*final_is_normed=False.*another folder"):
        write(tmp_path, store=replace(STORE, final_is_normed=False))


def test_a_second_writer_adds_to_the_first(tmp_path):
    write(tmp_path, range(2))
    write(tmp_path)
    assert read_all(tmp_path) == {make_sample(n).sample_id for n in range(SAMPLES)}


def test_rejected_samples_and_the_teachers_word_are_remembered(tmp_path):
    sample = replace(make_sample(0), teacher_agrees=False)
    ShardWriter(tmp_path, STORE, 0).write("shard-0.safetensors", [sample], {"other": "all zero"})
    (record,) = ShardWriter(tmp_path, STORE, 0).records
    assert (record.rejected, record.samples[0].teacher_agrees) == ({"other": "all zero"}, False)


@pytest.mark.fault("chunked-prefill")
def test_rows_that_do_not_fit_the_ids_are_refused(tmp_path):
    sample = make_sample(0)
    with pytest.raises(BadProduct, match=r"sample-0000000000000000.*\[20, 96\].*found .*\[19, 96\]"):
        ShardWriter(tmp_path, STORE, 0).write(
            "shard-0.safetensors", [replace(sample, states={**sample.states, "aux": sample.states["aux"][1:]})]
        )


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    write(tmp_path, range(4))
    path = tmp_path / INDEX_NAME
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(BadProduct, match=r"index.jsonl, line 1: a record of a shard was needed"):
        StateReader(tmp_path)


def test_the_index_ends_in_the_order_of_the_plan(tmp_path):
    write(tmp_path)
    before = [record.file for record in sort_index(tmp_path)]
    shard_files(tmp_path)[0].unlink()
    write(tmp_path)
    assert [record.file for record in read_index(tmp_path)] != before
    sort_index(tmp_path)
    assert [record.file for record in read_index(tmp_path)] == before


def test_shards_of_another_format_are_not_mixed(tmp_path):
    write(tmp_path, range(2))
    with pytest.raises(BadProduct, match=r"layer_ids=\[1, 2, 4\].*layer_ids=\[1, 2, 3\].*another folder"):
        write(tmp_path, range(2), store=replace(STORE, layer_ids=[1, 2, 3]))


def test_an_empty_folder_says_what_to_do(tmp_path):
    with pytest.raises(BadProduct, match="Run the extraction first"):
        StateReader(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [576, 7168])
def test_disk_estimate_is_within_two_percent(tmp_path, layout, width):
    tokens, samples = 300, 12
    writer = ShardWriter(tmp_path, replace(STORES[layout], hidden_size=width), 0)
    for first in range(0, samples, 3):
        group = [make_sample(first + i, tokens, width, layout) for i in range(3)]
        writer.write(f"shard-{first}.safetensors", group)
    found = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert expected_store_bytes(layout, width, 3, tokens * samples, samples) == pytest.approx(found, rel=0.02)
    shards_alone = sum(path.stat().st_size for path in shard_files(tmp_path))
    assert tokens * samples * bytes_per_token(layout, width, 3) == pytest.approx(shards_alone, rel=0.02)
