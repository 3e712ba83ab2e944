"""What an export refuses to write."""

import pytest
import torch
from small_drafters import VOCAB, random_drafter, small_config

from tasks.eagle3.export import export_drafter
from tasks.eagle3.vocab_map import VocabMap
from tasks.errors import BadInput, BadProduct

W = 11


def export(folder, target_ids, head_rows=W, change=lambda weights: None, vocab_size=VOCAB):
    weights = random_drafter(small_config(draft_vocab=head_rows)).state_dict()
    change(weights)
    vocab_map = VocabMap(torch.tensor(target_ids), vocab_size)
    export_drafter(folder, small_config(draft_vocab=head_rows), {}, weights, vocab_map, reserve_bytes=0)


def test_a_sound_map_is_written(tmp_path):
    export(tmp_path / "drafter", range(2, 2 + W))
    assert (tmp_path / "drafter" / "config.json").exists()


@pytest.mark.fault("bad-vocab-map")
@pytest.mark.parametrize(
    ("target_ids", "found"),
    [
        (range(W - 1), r"d2t of shape \(10,\), but lm_head has 11 rows"),
        ([1, 0, *range(2, W)], "draft ids 0 and 1 to 1 then 0; target ids must increase"),
        ([0, 0, *range(2, W)], "draft ids 0 and 1 to 0 then 0"),
        ([-1, *range(1, W)], r"maps to target ids -1\.\.10, outside 0\.\.28"),
        (range(VOCAB - W + 1, VOCAB + 1), r"maps to target ids 19\.\.29, outside 0\.\.28"),
        (range(VOCAB), "needs both d2t and t2d for 11 of 29 tokens, found neither"),
    ],
)
def test_an_unsound_map_is_refused_before_anything_is_written(tmp_path, target_ids, found):
    with pytest.raises(BadInput, match=f"the export to .*drafter .*{found}"):
        export(tmp_path / "drafter", target_ids)
    assert not (tmp_path / "drafter").exists()


@pytest.mark.fault("bad-vocab-map")
def test_a_map_for_another_vocabulary_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"t2d of shape \(20,\), but the target has 29 tokens"):
        export(tmp_path / "drafter", range(W), vocab_size=20)


@pytest.mark.fault("nan-loss")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_refused_before_anything_is_written(tmp_path, value):
    with pytest.raises(BadProduct, match=r"fc\.weight holds NaN or Inf: .*drafter was not written"):
        export(tmp_path / "drafter", range(W), change=lambda weights: weights["fc.weight"].view(-1)[3:4].fill_(value))
    assert not (tmp_path / "drafter").exists()
