"""The training itself: optimizer steps, validations, checkpoints, and the state that they share.

Shapes: T positions; S predicted tokens; K unroll steps; D hidden size; V target vocabulary; W draft vocabulary.
"""

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tasks.eagle3.base import Base, build_drafter
from tasks.eagle3.checkpoints import Checkpoints
from tasks.eagle3.curve import Row
from tasks.eagle3.export import rounded
from tasks.eagle3.metrics import acceptance_length
from tasks.eagle3.optimizers import build_optimizers, learning_rate, pull_to_base, set_learning_rate
from tasks.eagle3.packing import Step, counted_in, read_pack
from tasks.eagle3.schedule import Schedule
from tasks.eagle3.soft_cross_entropy import DraftLoss, soft_cross_entropy
from tasks.eagle3.target_head import TargetHead
from tasks.eagle3.unroll import Pack, Plan, loss_weights, plan_unroll, unroll
from tasks.eagle3.validation import Validation
from tasks.eagle3.watch import REPORT_EVERY_SECONDS, watched
from tasks.errors import BadProduct, DeadlineReached, Stopped
from tasks.hidden_states.reader import StateReader
from tasks.recipe import Training
from tasks.system.child import Reporter

State = dict[str, Any]
"""What a checkpoint holds."""


@dataclass
class Progress:
    """Where a training stands."""

    step: int = 0
    """Finished optimizer steps, of all windows: also the data cursor."""
    positions: int = 0
    """Supervised positions trained on."""
    base_acceptance_length: float = 1.0
    best_step: int = 0
    best_acceptance_length: float = 0.0
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    """bf16; empty while the untouched base is the best."""
    curve: list[Row] = field(default_factory=list)


class Trainer:
    """One training on one device."""

    def __init__(
        self,
        base: Base,
        target: TargetHead,
        training: Training,
        reader: StateReader,
        schedule: Schedule,
        validation: Validation,
        checkpoints: Checkpoints,
        reporter: Reporter,
    ) -> None:
        assert base.vocab_map is not None
        torch.manual_seed(training.seed)
        self._device = torch.device(training.device)
        self._training, self._reader, self._schedule = training, reader, schedule
        self._validation, self._checkpoints, self._reporter = validation, checkpoints, reporter
        compute_dtype = torch.bfloat16 if training.autocast == "bfloat16" else torch.float32
        self._drafter = build_drafter(base).to(self._device)
        self._base = (
            {name: tensor.float().to(self._device) for name, tensor in base.weights.items()}
            if training.pull_to_base
            else {}
        )
        self._optimizers = build_optimizers(self._drafter, training)
        target_ids_W = base.vocab_map.target_ids_W
        self._target_ids_W = target_ids_W.to(self._device)
        self._embed_VD = target.embed_VD.to(self._device)
        self._teacher_head_WD = target.lm_head_VD[target_ids_W].to(self._device, compute_dtype)
        self.progress = Progress()
        self._saved_step: int | None = None

    def run(self, handed_over: State | None = None) -> Progress:
        """Train to the end, from the newest checkpoint if there is one.

        Args:
            handed_over: Where the window before ended; None in the first, and without windows.

        Raises:
            Stopped: The reporter was asked to stop; a checkpoint was saved.
            DeadlineReached: It is time to wind down; likewise.
            BadProduct: The loss is not finite; nothing was saved after it.
            NotEnoughDisk: A checkpoint found no room; the one before it holds.
        """
        self._validation.choose(self._device, watched(self._reporter, "computing the target's choices", "packs"))
        self._begin(handed_over)
        end, total = self._schedule.end, self._schedule.total
        saved_at, reported_at, since = time.monotonic(), 0.0, (time.monotonic(), self.progress.positions)
        for step, packs in self._upcoming():
            row = self._optimizer_step(step, packs)
            row["positions_per_second"] = round(_rate(since, self.progress.positions), 1)
            if self.progress.step % self._training.validate_every_steps == 0 or self.progress.step == total:
                row["acceptance_length"] = self._validate()
                # A validation is no training time: the rate counts from here.
                since = (time.monotonic(), self.progress.positions)
            now = time.monotonic()
            if now - reported_at >= REPORT_EVERY_SECONDS or self.progress.step == end:
                self._report(row)
                reported_at = now
            if self._reporter.stop_requested:
                self._save()
                raise Stopped(f"training stopped after step {self.progress.step} of {total}; it goes on there.")
            if self._reporter.is_winding_down and self.progress.step < end:
                self._save()
                raise DeadlineReached(f"training {100 * self.progress.step / total:.0f} %")
            if now - saved_at >= self._training.checkpoint_every_seconds:
                self._save()
                saved_at = time.monotonic()
        # Killed after this, the next start has nothing to train again.
        self._save()
        return self.progress

    def _begin(self, handed_over: State | None) -> None:
        """Go on from the newest checkpoint, else from the window before, else from the base, which is validated."""
        state = self._checkpoints.load_newest()
        if state is not None:
            self._restore(state)
            self._saved_step = self.progress.step
        elif handed_over is not None:
            self._restore(handed_over)
        else:
            self._validate()

    def _upcoming(self) -> Iterator[tuple[Step, list[Pack]]]:
        """The steps that are left with their packs, the next step's being read while one is computed."""
        left = self._schedule.steps[self.progress.step - self._schedule.before :]
        with ThreadPoolExecutor(1) as pool:
            read = lambda step: [read_pack(self._reader, documents) for documents in step]  # noqa: E731
            coming = pool.submit(read, left[0]) if left else None
            for i, step in enumerate(left):
                assert coming is not None
                packs = coming.result()
                coming = pool.submit(read, left[i + 1]) if i + 1 < len(left) else None
                yield step, packs

    def _optimizer_step(self, step: Step, packs: list[Pack]) -> Row:
        counted = counted_in(step)
        loss_K = torch.zeros(self._training.unroll_steps)
        hits_K = torch.zeros(self._training.unroll_steps)
        for pack in packs:
            on_device = pack.to(self._device)
            plan = plan_unroll(on_device.answer_T, on_device.start_T, self._training.unroll_steps)
            result = self._loss(on_device, plan, counted)
            if not math.isfinite(result.loss.item()):
                raise self._not_finite("loss", step)
            result.loss.backward()
            loss_K += result.weighted_K.cpu()
            hits_K += self._hits(result, on_device, plan)
        rate = learning_rate(self.progress.step, self._schedule.total, self._training)
        self._apply_gradients(rate, step)
        self.progress.step += 1
        self.progress.positions += counted[0]
        row = self._row(loss_K, hits_K, counted, rate)
        self.progress.curve.append(row)
        return row

    def _loss(self, pack: Pack, plan: Plan, counted: list[int]) -> DraftLoss:
        with self._autocast():
            drafts_KSD = unroll(self._drafter, self._embed_VD, pack, plan)
        weight_KS = loss_weights(plan, self._training.step_weight, counted, torch.float32)
        teacher = pack.teacher[plan.predictor_S]
        return soft_cross_entropy(drafts_KSD, self._drafter.lm_head.weight, teacher, self._teacher_head_WD, weight_KS)

    def _hits(self, result: DraftLoss, pack: Pack, plan: Plan) -> Tensor:
        """Counted drafts that equal the answer's own token, for every step, [K]."""
        drafted_KS = self._target_ids_W[result.drafted_KS]
        return ((drafted_KS == pack.tokens_T[plan.predictor_S + 1]) & plan.counted_KS).sum(1).cpu().float()

    def _apply_gradients(self, rate: float, step: Step) -> None:
        if self._base:
            pull_to_base(self._drafter, self._base, self._training.pull_to_base)
        trained = [p for p in self._drafter.parameters() if p.requires_grad]
        gradient_norm = torch.nn.utils.clip_grad_norm_(trained, self._training.clip_norm)
        if not bool(gradient_norm.isfinite()):
            raise self._not_finite("gradient", step)
        set_learning_rate(self._optimizers, rate)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _not_finite(self, what: str, step: Step) -> BadProduct:
        samples = [document.entry.sample_id for documents in step for document in documents]
        shown = ", ".join(samples[:20]) + (f" and {len(samples) - 20} more" if len(samples) > 20 else "")
        return BadProduct(
            f"the {what} of step {self.progress.step + 1} is NaN or Inf, with the samples {shown}. Nothing was saved "
            f"after step {self.progress.step}. Look at these samples' states, or lower training.learning_rate."
        )

    def _row(self, loss_K: Tensor, hits_K: Tensor, counted: list[int], rate: float) -> Row:
        row: Row = {"step": self.progress.step, "positions": self.progress.positions, "loss": float(loss_K.sum())}
        row |= {f"loss_{k}": float(x) / self._training.step_weight**k for k, x in enumerate(loss_K)}
        row |= {f"accuracy_{k}": float(x) / max(counted[k], 1) for k, x in enumerate(hits_K)}
        return row | {"acceptance_length": None, "learning_rate": rate}

    def _validate(self) -> float:
        progress = self.progress
        # Later on the step that was just made is saved first: a stop waits for the end of the validation.
        watch = watched(self._reporter, "validating", "packs", stoppable=progress.step == 0)
        counts = self._validation.acceptances(
            self._drafter, self._embed_VD, self._target_ids_W, self._autocast(), watch
        )
        length = acceptance_length(counts)
        if progress.step == 0:
            progress.base_acceptance_length = length
            row: Row = {"step": 0, "positions": 0, "acceptance_length": length}
            progress.curve.append(row)
            self._report(row)
        if length > progress.best_acceptance_length:
            progress.best_step, progress.best_acceptance_length = progress.step, length
            progress.best_weights = rounded(self._drafter.state_dict()) if progress.step else {}
        return length

    def _report(self, row: Row) -> None:
        measured = [r["acceptance_length"] for r in self.progress.curve if r["acceptance_length"] is not None]
        self._reporter.progress(
            "training",
            self.progress.step,
            self._schedule.total,
            "steps",
            loss=row.get("loss"),
            acceptance_length=measured[-1] if measured else None,
            positions_per_second=row.get("positions_per_second"),
        )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._training.autocast == "bfloat16")

    def state(self) -> State:
        """All that the next step depends on, and what was reached so far."""
        return {
            "progress": vars(self.progress),
            "weights": self._drafter.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "rng": torch.get_rng_state(),
            "device_rng": torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None,
        }

    def _save(self) -> None:
        if self._saved_step == self.progress.step:
            return
        self._checkpoints.save(self.progress.step, self.state())
        self._saved_step = self.progress.step

    def _restore(self, state: State) -> None:
        self.progress = Progress(**state["progress"])
        self._drafter.load_state_dict(state["weights"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["rng"])
        if state["device_rng"] is not None:
            torch.cuda.set_rng_state(state["device_rng"], self._device)


def _rate(since: tuple[float, int], positions: int) -> float:
    """Supervised positions a second since then."""
    began, before = since
    return (positions - before) / max(time.monotonic() - began, 1e-9)
