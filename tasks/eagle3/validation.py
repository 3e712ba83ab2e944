"""Simulated acceptance on held-out samples, with the target's own choice over its whole vocabulary.

Shapes: K drafting steps; S predicted tokens; N drafting positions; D hidden size; V target vocabulary;
W draft vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tasks.eagle3.drafter import Eagle3Drafter
from tasks.eagle3.metrics import conditional_acceptances, visited_positions
from tasks.eagle3.packing import Document, read_pack
from tasks.eagle3.soft_cross_entropy import block_rows
from tasks.eagle3.unroll import Plan, plan_unroll, unroll
from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.teacher import FinalStates, Teacher


class Validation:
    """Held-out packs and, once computed, the target's choices on them."""

    def __init__(
        self, reader: StateReader, packs: Sequence[Sequence[Document]], lm_head_VD: Tensor, steps: int
    ) -> None:
        self._reader = reader
        self._packs = packs
        self._lm_head_VD: Tensor | None = lm_head_VD
        self._steps = steps
        self._chosen: list[Tensor] = []

    def choose(self, device: torch.device, progress: Callable[[int, int], None]) -> None:
        """Compute the target's greedy choice at every predicted token; the whole lm_head is then let go."""
        assert self._lm_head_VD is not None
        lm_head_VD = self._lm_head_VD.to(device)
        for done, documents in enumerate(self._packs):
            pack = read_pack(self._reader, documents)
            plan = plan_unroll(pack.answer_T, pack.start_T, self._steps)
            self._chosen.append(choices(pack.teacher[plan.predictor_S], lm_head_VD, device).cpu())
            progress(done + 1, len(self._packs))
        self._lm_head_VD = None

    def acceptances(
        self,
        drafter: Eagle3Drafter,
        embed_VD: Tensor,
        target_ids_W: Tensor,
        autocast: torch.autocast,
        progress: Callable[[int, int], None],
    ) -> list[tuple[int, int]]:
        """Hits and tries of every drafting step.

        Args:
            drafter: The drafter.
            embed_VD: The target's embeddings.
            target_ids_W: Target id of every draft id: a token outside the draft vocabulary is never hit.
            autocast: The compute type.
            progress: Called with the packs done and their number.
        """
        totals = [(0, 0)] * self._steps
        for done, (documents, chosen_S) in enumerate(zip(self._packs, self._chosen, strict=True)):
            progress(done, len(self._packs))
            pack = read_pack(self._reader, documents).to(embed_VD.device)
            plan = plan_unroll(pack.answer_T, pack.start_T, self._steps)
            with torch.no_grad(), autocast:
                drafts_KSD = unroll(drafter, embed_VD, pack, plan)
                head_WD = drafter.lm_head.weight.to(drafts_KSD.dtype)
                drafted_KS = torch.stack([target_ids_W[highest(draft_SD, head_WD)] for draft_SD in drafts_KSD])
            hits_KS = drafted_KS == chosen_S.to(drafted_KS.device)
            counts = served_acceptances(hits_KS, plan, pack.answer_T)
            totals = [(a + c, b + d) for (a, b), (c, d) in zip(totals, counts, strict=True)]
        return totals


def served_acceptances(hits_KS: Tensor, plan: Plan, answer_T: Tensor) -> list[tuple[int, int]]:
    """Hits and tries of every step at the positions where a server would draft."""
    hits_KN = by_position(hits_KS & plan.counted_KS, plan).cpu()
    generated_N = answer_T[plan.rows_N + 1].cpu()
    visited_N = visited_positions(hits_KN, plan.rows_N.tolist(), generated_N)
    counted_KN = by_position(plan.counted_KS, plan).cpu()
    return conditional_acceptances(hits_KN[:, visited_N], counted_KN[:, visited_N])


def by_position(flags_KS: Tensor, plan: Plan) -> Tensor:
    """Flags by predicted token, arranged by the position that drafts (False where it drafts nothing), [K, N]."""
    flags_KN = torch.zeros(len(flags_KS), len(plan.rows_N), dtype=torch.bool, device=flags_KS.device)
    for k, (flag_S, row_S, counted_S) in enumerate(zip(flags_KS, plan.row_of_KS, plan.counted_KS, strict=True)):
        flags_KN[k, row_S[counted_S]] = flag_S[counted_S]
    return flags_KN


def choices(teacher: Teacher, lm_head_VD: Tensor, device: torch.device) -> Tensor:
    """The target's own choice over its whole vocabulary: stored, or computed from its final states."""
    if isinstance(teacher, FinalStates):
        return highest(teacher.final_TD.to(device), lm_head_VD)
    return teacher.choice_T


def highest(states_SD: Tensor, head_VD: Tensor) -> Tensor:
    """Index of the highest logit of every state, a block of rows at a time."""
    rows = block_rows(len(head_VD), head_VD.device)
    states_SD = states_SD.to(head_VD.dtype)
    parts = [(states_SD[i : i + rows] @ head_VD.T).argmax(-1) for i in range(0, len(states_SD), rows)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long, device=head_VD.device)
