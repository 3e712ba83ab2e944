"""What a token takes in each layout: the planner's figures. Needs no torch; the files themselves are in test_store."""

import pytest

from tasks.errors import RecipeError
from tasks.hidden_states.layout import DTYPE_BYTES, LAYOUTS, bytes_per_token, tensor_widths

KIMI, SMOLLM2 = 7168, 576


@pytest.mark.parametrize(
    ("layout", "hidden_size", "published"),
    [
        ("bf16", KIMI, 57_344),
        ("fp8", KIMI, 28_690),
        ("fp8+topk", KIMI, 21_910),
        ("bf16", SMOLLM2, 4_608),
        ("fp8", SMOLLM2, 2_320),
        ("fp8+topk", SMOLLM2, 2_150),
    ],
)
def test_a_token_takes_the_published_bytes(layout, hidden_size, published):
    assert bytes_per_token(layout, hidden_size, 3) == pytest.approx(published, rel=0.01)


def test_at_kimis_width_the_smallest_layout_takes_at_most_39_percent_of_the_largest():
    assert bytes_per_token("fp8+topk", KIMI, 3) <= 0.39 * bytes_per_token("bf16", KIMI, 3)


def test_top_k_matters_only_where_logits_are_stored():
    more = {layout: bytes_per_token(layout, KIMI, 3, 128) - bytes_per_token(layout, KIMI, 3, 64) for layout in LAYOUTS}
    assert more == {"bf16": 0, "fp8": 0, "fp8+topk": 64 * 6}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_tensor_of_a_shard_is_misaligned(layout):
    sizes = [DTYPE_BYTES[dtype] for dtype, _ in tensor_widths(layout, KIMI, 3).values()]
    assert sizes == sorted(sizes, reverse=True)


def test_an_unknown_layout_is_refused_with_the_known_ones():
    with pytest.raises(RecipeError, match=r"layout 'fp4' is not one.*bf16, fp8, fp8\+topk"):
        bytes_per_token("fp4", KIMI, 3)
