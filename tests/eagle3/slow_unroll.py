"""The training-time test written position by position from the paper's definition, slow and plain.

Nothing is shared with the package but the parameters: no packing, no rows, no blocks, no fused loss. Every
document is unrolled by itself, and every position computes every step that its document is long enough for.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from tasks.eagle3.drafter import Eagle3Drafter
from tasks.eagle3.unroll import Pack


def documents(pack: Pack) -> list[slice]:
    edges = [*sorted(set(pack.start_T.tolist())), len(pack.tokens_T)]
    return [slice(a, b) for a, b in pairwise(edges)]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean() + eps) * weight


def rotate(x: Tensor, position: int, theta: float) -> Tensor:
    """Llama's rotary embedding of one head, coordinate by coordinate."""
    half = len(x) // 2
    out: list[Tensor] = [x[0]] * len(x)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return torch.stack(out)


class Block:
    """One drafter applied to one token at a time, with explicit lists of the keys that it may see."""

    def __init__(self, drafter: Eagle3Drafter) -> None:
        self.w, self.config = dict(drafter.named_parameters()), drafter.config

    def enter(self, embed: Tensor, hidden: Tensor, position: int) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
        c, w = self.config, self.w
        normed = norm(hidden, w["midlayer.hidden_norm.weight"], c.rms_norm_eps)
        residual = normed if c.norm_before_residual else hidden
        x = torch.cat([norm(embed, w["midlayer.input_layernorm.weight"], c.rms_norm_eps), normed])
        q, k, v = ((w[f"midlayer.self_attn.{n}_proj.weight"] @ x).view(-1, c.head_dim) for n in "qkv")
        rotated = [torch.stack([rotate(head, position, c.rope_theta) for head in t]) for t in (q, k)]
        return residual, [rotated[0]], rotated[1], v

    def leave(self, residual: Tensor, query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        c, w = self.config, self.w
        heads = []
        for h in range(c.attention_heads):
            j = h // (c.attention_heads // c.key_value_heads)
            scores = torch.stack([query[h] @ key[j] for key in keys]) / math.sqrt(c.head_dim)
            heads.append(sum(p * value[j] for p, value in zip(scores.softmax(0), values, strict=True)))
        x = residual + w["midlayer.self_attn.o_proj.weight"] @ torch.cat(heads)
        y = norm(x, w["midlayer.post_attention_layernorm.weight"], c.rms_norm_eps)
        gate, up = (w[f"midlayer.mlp.{n}_proj.weight"] @ y for n in ("gate", "up"))
        return x + w["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)


def reference_loss(
    drafter: Eagle3Drafter,
    pack: Pack,
    embed: Tensor,
    lm_head: Tensor,
    target_ids: Tensor,
    steps: int,
    step_weight: float,
    cross_entropy: Callable[[Tensor, Tensor], Tensor] = lambda p, q: -(p * q.log()).sum(),
) -> tuple[Tensor, dict[tuple[int, int], Tensor]]:
    """The loss, and the logits of every counted draft by (step, predicting position in the pack)."""
    sums: list[list[Tensor]] = [[] for _ in range(steps)]
    logits: dict[tuple[int, int], Tensor] = {}
    for span in documents(pack):
        tokens, answer = pack.tokens_T[span], pack.answer_T[span]
        for (k, t), z in unroll_document(drafter, tokens, pack.aux_TAD[span], embed, steps).items():
            predicted = t + 2 + k
            if predicted < len(tokens) and answer[predicted]:
                teacher = (lm_head[target_ids] @ pack.teacher.final_TD[span][t + 1 + k]).softmax(0)
                sums[k].append(cross_entropy(teacher, z.softmax(0)))
                logits[k, span.start + t] = z
    means = [torch.stack(losses).mean() for losses in sums if losses]
    weights = [step_weight**k for k, losses in enumerate(sums) if losses]
    return sum(w * m for w, m in zip(weights, means, strict=True)), logits  # type: ignore[return-value]


def unroll_document(
    drafter: Eagle3Drafter, tokens: Tensor, aux: Tensor, embed: Tensor, steps: int
) -> dict[tuple[int, int], Tensor]:
    """Logits of step k at position t, wherever the token that the step reads exists."""
    block, c = Block(drafter), drafter.config
    norm_weight, head = block.w["norm.weight"], block.w["lm_head.weight"]
    first_keys, first_values, logits = [], [], {}
    for t in range(len(tokens) - 1):
        own_keys: list[Tensor] = []
        own_values: list[Tensor] = []
        hidden = block.w["fc.weight"] @ aux[t]
        for k in range(steps):
            if t + 1 + k >= len(tokens):
                break
            residual, (query,), key, value = block.enter(embed[tokens[t + 1 + k]], hidden, t + k)
            if k == 0:
                first_keys.append(key)
                first_values.append(value)
            else:
                own_keys.append(key)
                own_values.append(value)
            output = block.leave(residual, query, first_keys + own_keys, first_values + own_values)
            normed = norm(output, norm_weight, c.rms_norm_eps)
            logits[k, t] = head @ normed
            hidden = normed if c.norm_output else output
    return logits
