"""Small drafters and packs for the tests."""

import torch

from tasks.eagle3.config import DrafterConfig
from tasks.eagle3.drafter import Eagle3Drafter
from tasks.eagle3.unroll import Pack
from tasks.hidden_states.teacher import FinalStates

VOCAB = 29


def small_config(draft_vocab: int = 11, heads: int = 4, key_heads: int = 2, **flags: bool) -> DrafterConfig:
    return DrafterConfig(
        hidden_size=12,
        intermediate_size=20,
        attention_heads=heads,
        key_value_heads=key_heads,
        head_dim=6,
        vocab_size=VOCAB,
        draft_vocab_size=draft_vocab,
        layer_ids=(1, 2, 3),
        rms_norm_eps=1e-5,
        rope_theta=100.0,
        max_position_embeddings=64,
        **flags,
    )


def random_drafter(config: DrafterConfig, seed: int = 0) -> Eagle3Drafter:
    generator = torch.Generator().manual_seed(seed)
    drafter = Eagle3Drafter(config).double()
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4 + 0.1)
    return drafter


def random_pack(lengths: list[int], answers: list[set[int]], hidden_size: int = 12, seed: int = 1) -> Pack:
    """Documents of these lengths, with answers at these positions of each document."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    answer = [position in wanted for n, wanted in zip(lengths, answers, strict=True) for position in range(n)]
    return Pack(
        sample_ids=[f"sample-{i}" for i in range(len(lengths))],
        tokens_T=torch.randint(VOCAB, (total,), generator=generator),
        answer_T=torch.tensor(answer),
        start_T=torch.repeat_interleave(torch.tensor(starts), torch.tensor(lengths)),
        aux_TAD=torch.randn(total, 3 * hidden_size, generator=generator, dtype=torch.float64),
        teacher=FinalStates(torch.randn(total, hidden_size, generator=generator, dtype=torch.float64)),
    )
