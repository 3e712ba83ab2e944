"""Vocabulary maps: made from counts, and refused when vLLM would silently draft other tokens with them."""

import pytest
import torch

from tasks.eagle3.vocab_map import checked_map, most_frequent
from tasks.errors import BadInput

VOCAB = 12


def sound() -> dict[str, torch.Tensor]:
    return most_frequent(torch.tensor([0, 5, 0, 9, 5, 0, 0, 1, 0, 0, 0, 0]), 4).tensors()


def test_the_most_frequent_tokens_are_drafted_and_ties_go_to_lower_ids():
    made = most_frequent(torch.tensor([0, 5, 7, 5, 5]), 3)
    assert made.target_ids_W.tolist() == [1, 2, 3]


def test_d2t_holds_offsets_and_t2d_a_mask():
    tensors = sound()
    assert tensors["d2t"].tolist() == [1, 2, 2, 4]
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].nonzero().squeeze(1).tolist() == [1, 3, 4, 7]
    assert tensors["t2d"].dtype == torch.bool


@pytest.mark.fault("bad-vocab-map")
def test_a_map_of_the_whole_vocabulary_is_absent():
    assert most_frequent(torch.ones(VOCAB), 100).tensors() == {}


def test_coverage_is_the_share_of_counted_tokens():
    counts = torch.tensor([6, 0, 3, 1])
    assert most_frequent(counts, 2).coverage(counts) == pytest.approx(0.9)


def test_what_was_made_is_read_back():
    tensors = sound()
    assert checked_map(tensors["d2t"], tensors["t2d"], 4, VOCAB, "x").target_ids_W.tolist() == [1, 3, 4, 7]


def test_the_first_ids_are_a_sound_map_although_d2t_is_all_zero():
    t2d = torch.arange(VOCAB) < 4
    assert checked_map(torch.zeros(4, dtype=torch.long), t2d, 4, VOCAB, "x").target_ids_W.tolist() == [0, 1, 2, 3]


@pytest.mark.fault("bad-vocab-map")
def test_an_absent_map_is_sound_for_the_whole_vocabulary():
    assert checked_map(None, None, VOCAB, VOCAB, "x").whole


@pytest.mark.fault("bad-vocab-map")
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"d2t": None}, "found t2d"),
        ({"t2d": None}, "found d2t"),
        ({"d2t": None, "t2d": None}, "found neither"),
        ({"d2t": torch.tensor([1, 2, 2])}, r"shape \(3,\)"),
        ({"d2t": torch.zeros(4, dtype=torch.long)}, "all zero"),
        ({"d2t": torch.tensor([1, 2, 2, 0])}, "draft ids 2 and 3 to 4 then 3"),
        ({"d2t": torch.tensor([1, 2, 2, 9])}, r"1\.\.12, outside 0\.\.11"),
        ({"d2t": torch.tensor([-1, 2, 2, 4])}, r"-1\.\.7, outside"),
        ({"d2t": torch.tensor([1, 2, 2, 5])}, "two different maps"),
        ({"t2d": torch.zeros(VOCAB, dtype=torch.bool)}, "0 tokens in t2d and 4 rows"),
        ({"t2d": torch.ones(VOCAB + 1, dtype=torch.bool)}, r"t2d of shape \(13,\)"),
        ({"d2t": torch.tensor([1.0, 2.0, 2.0, 4.0])}, "float32"),
    ],
)
def test_an_unsound_map_is_refused_with_what_was_found(change, found):
    tensors = {**sound(), **change}
    with pytest.raises(BadInput, match=found):
        checked_map(tensors["d2t"], tensors["t2d"], 4, VOCAB, "drafter")
