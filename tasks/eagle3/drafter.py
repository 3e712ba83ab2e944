"""The EAGLE-3 drafter: one Llama decoder layer between a fusion of target states and a small lm_head.

Computes what vLLM's ``vllm/model_executor/models/llama_eagle3.py`` computes, in plain torch, cut into the
pieces that training needs: keys for every position, everything else only for the rows that are trained.
Parameter names are those of the checkpoint file.

Shapes: T positions of a pack; N rows; D hidden size; A auxiliary layers; H query heads; J key/value
heads; E head width; W draft vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.eagle3.config import DrafterConfig
from tasks.eagle3.precision import wide


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x_ND: Tensor) -> Tensor:
        """Normed rows, float32."""
        return F.rms_norm(wide(x_ND), self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Projections and rotary embedding of the decoder layer; its input is two hidden sizes wide."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        wide_size, head_dim = 2 * config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(wide_size, config.attention_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(wide_size, config.key_value_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(wide_size, config.key_value_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(config.attention_heads * head_dim, config.hidden_size, bias=False)
        self.head_dim = head_dim
        self.rope_theta = config.rope_theta

    def rotary(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions, [N, 1, E/2], float32 (float64 for a float64 drafter)."""
        dtype = torch.float64 if self.q_proj.weight.dtype == torch.float64 else torch.float32
        exponents = torch.arange(0, self.head_dim, 2, device=positions_N.device, dtype=dtype) / self.head_dim
        angles = positions_N.to(dtype)[:, None, None] * self.rope_theta**-exponents
        return angles.cos(), angles.sin()

    def queries(self, x_N2D: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Rotated queries, [N, H, E]."""
        return _rotated(self.q_proj(x_N2D).unflatten(-1, (-1, self.head_dim)), rotary)

    def keys_values(self, x_N2D: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rotated keys and plain values, each [N, J, E]."""
        keys_NJE = self.k_proj(x_N2D).unflatten(-1, (-1, self.head_dim))
        return _rotated(keys_NJE, rotary), self.v_proj(x_N2D).unflatten(-1, (-1, self.head_dim))


def _rotated(x_NHE: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Llama's rotary embedding: the halves of a head are the two coordinates."""
    cos, sin = rotary
    first, second = wide(x_NHE).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x_NHE.dtype)


class MLP(nn.Module):
    """Gated MLP with SiLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_ND: Tensor) -> Tensor:
        """[N, D] to [N, D]."""
        return self.down_proj(F.silu(self.gate_proj(x_ND)) * self.up_proj(x_ND))


class MidLayer(nn.Module):
    """The decoder layer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm_before_residual = config.norm_before_residual

    def enter(self, embed_ND: Tensor, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The attention's input [N, 2D] and the residual [N, D] from a token and the state before it."""
        normed_ND = self.hidden_norm(hidden_ND)
        residual_ND = normed_ND if self.norm_before_residual else wide(hidden_ND)
        return torch.cat([self.input_layernorm(embed_ND), normed_ND], dim=-1), residual_ND

    def leave(self, attended_NHE: Tensor, residual_ND: Tensor) -> Tensor:
        """The layer's output before the final norm, [N, D], from what attention returned."""
        residual_ND = residual_ND + self.self_attn.o_proj(attended_NHE.flatten(1))
        return residual_ND + self.mlp(self.post_attention_layernorm(residual_ND))


class Eagle3Drafter(nn.Module):
    """All trainable weights of a drafter; the embeddings are the target's and are not in it."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        if config.draft_vocab_size is None:
            raise ValueError("the drafter needs draft_vocab_size: make the vocabulary map first")
        self.config = config
        self.fc = nn.Linear(len(config.layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def fed_back(self, prenorm_ND: Tensor) -> Tensor:
        """What the next drafting step gets as its hidden state."""
        return self.norm(prenorm_ND) if self.config.norm_output else prenorm_ND
