"""``make bench-layouts``: what the small layouts of hidden states cost in acceptance length, on the demo's model.

In the engine environment, on answers that ``demo_answers`` has made. Every arm trains the demo's drafter from the
same answers, from the same initial weights and for as many epochs, from states that a real vLLM captured in the
arm's layout, or in three windows; three seeds each. All of them are measured alike: on 160 held-out samples that
neither training nor the choice of the best checkpoint has seen, against bf16 states of them.

Whatever is finished stays in the folder, so that an interrupted benchmark goes on. With ``--quick`` it shows in some
minutes that everything works; its figures say nothing.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from tasks.eagle3.base import build_drafter, read_base
from tasks.eagle3.layer_ids import default_layer_ids
from tasks.eagle3.metrics import acceptance_length
from tasks.eagle3.packing import Document, pack_documents, read_pack, survey_samples
from tasks.eagle3.soft_cross_entropy import soft_cross_entropy
from tasks.eagle3.spec import (
    InitialDrafterResult,
    InitialDrafterSpec,
    TrainingResult,
    TrainingSpec,
    WindowedTraining,
)
from tasks.eagle3.target_head import read_target_head
from tasks.eagle3.unroll import loss_weights, plan_unroll, unroll
from tasks.eagle3.validation import Validation
from tasks.hidden_states.layout import Layout, bytes_per_token
from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.spec import ExtractionResult, ExtractionSpec
from tasks.hidden_states.target import read_target_shape
from tasks.hidden_states.windows import WHOLE, Window
from tasks.recipe import Recipe, from_json, to_json
from tasks.system.engine_child import run_in_engine
from tasks.system.files import write_atomically
from tasks.system.responses import RESPONSES_NAME, Response, read_responses
from tests.benchmarks.demo_answers import ANSWERS_NAME, HELD_OUT_SAMPLES, Answers, engine_python

LARGEST_LOSS = 0.02
"""Acceptance length that the smallest layout may cost."""
QUICK_TRAINING_SAMPLES, QUICK_HELD_OUT_SAMPLES = 120, 30

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Figures:
    """A trained drafter on the held-out samples."""

    acceptance_length: float
    loss: float


class Bench:
    """The folder with everything that the arms share, and what they are made of."""

    def __init__(self, folder: Path, quick: bool) -> None:
        answers = from_json(Answers, (folder / ANSWERS_NAME).read_text())
        self.recipe: Recipe = answers.recipe
        self.target_folder = answers.target_folder
        self._folder = folder / ("quick" if quick else "full")
        self._split(list(read_responses(answers.responses_path)), quick)
        self.shape = read_target_shape(self.target_folder)
        self.layer_ids = default_layer_ids(self.shape.decoder_layers)

    def _split(self, responses: list[Response], quick: bool) -> None:
        """What is trained on, with the samples that choose the best checkpoint, and what is measured on."""
        training = [r for r in responses if r.split == "training"]
        others = sorted((r for r in responses if r.split == "validation"), key=lambda r: r.sample_id)
        held_out, choosing = others[:HELD_OUT_SAMPLES], others[HELD_OUT_SAMPLES:]
        if quick:
            training, held_out = training[:QUICK_TRAINING_SAMPLES], held_out[:QUICK_HELD_OUT_SAMPLES]
        for name, samples in (("trained-on", training + choosing), ("held-out", held_out)):
            path = self._responses_path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, "".join(sample.to_line() + "\n" for sample in samples))

    def states(self, answers: str, layout: Layout, window: Window = WHOLE) -> Path:
        """Hidden states of ``trained-on`` or ``held-out``, all or a window of them, in a layout."""
        name = f"{answers}/{layout}" + ("" if window.is_whole else f"-{window.index + 1}-of-{window.count}")
        spec = ExtractionSpec(
            target_folder=self.target_folder,
            responses_path=self._responses_path(answers),
            out_folder=self._folder / name,
            layer_ids=self.layer_ids,
            reserve_bytes=0,
            target=self.recipe.target,
            extraction=dataclasses.replace(self.recipe.extraction, layout=layout),
            drafter_folder=None,
            draft_vocab_tokens=self.recipe.drafter.draft_vocab_tokens,
            window=window,
        )
        environment = self.recipe.extraction.engine.environment
        self._once(name, "tasks.hidden_states.extract", spec, ExtractionResult, environment)
        return spec.out_folder

    def trained_whole(self, layout: Layout, seed: int) -> Path:
        """The best drafter of a training on the states of all samples; the seed is of initial weights and order."""
        return self._trained(layout, self.states("trained-on", layout), seed, None)[0] / "best"

    def trained_in_windows(self, layout: Layout, count: int, seed: int) -> Path:
        """The same of states that are captured and trained on window by window."""
        previous_folder, steps = None, 0
        for index in range(count):
            window = Window(index, count)
            windowed = WindowedTraining(
                window=window,
                responses_path=self._responses_path("trained-on"),
                longest_tokens=self.recipe.target.window_tokens,
                previous_folder=previous_folder,
                steps_before=steps,
            )
            name = f"{layout}-{index + 1}-of-{count}"
            previous_folder, result = self._trained(name, self.states("trained-on", layout, window), seed, windowed)
            steps = result.steps
        assert previous_folder is not None
        return previous_folder / "best"

    def _trained(
        self, name: str, states_folder: Path, seed: int, windowed: WindowedTraining | None
    ) -> tuple[Path, TrainingResult]:
        drafter = dataclasses.replace(self.recipe.drafter, seed=seed)
        initial = InitialDrafterSpec(
            target_folder=self.target_folder, out_folder=self._folder / f"initial/{seed}", drafter=drafter
        )
        self._once(f"initial/{seed}", "tasks.eagle3.initialize", initial, InitialDrafterResult, {})
        spec = TrainingSpec(
            target_folder=self.target_folder,
            base_folder=initial.out_folder,
            states_folder=states_folder,
            out_folder=self._folder / f"trained/{name}-seed-{seed}",
            reserve_bytes=0,
            drafter=drafter,
            training=dataclasses.replace(self.recipe.training, seed=seed),
            windowed=windowed,
        )
        environment = self.recipe.training.environment
        name = f"trained/{spec.out_folder.name}"
        return spec.out_folder, self._once(name, "tasks.eagle3.train", spec, TrainingResult, environment)

    def _responses_path(self, answers: str) -> Path:
        return self._folder / answers / RESPONSES_NAME

    def _once(
        self, name: str, module: str, spec: object, result_type: type[Result], environment: Mapping[str, str]
    ) -> Result:
        """Run a child unless an earlier run of the benchmark has its result."""
        done = self._folder / name / "result.json"
        if not done.exists():
            started = time.monotonic()
            work = self._folder / name / "work"
            result = run_in_engine(engine_python(), module, spec, result_type, work, lambda _: None, environment)
            write_atomically(done, to_json(result))
            print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
        return from_json(result_type, done.read_text())


class HeldOut:
    """The samples that are measured on, as bf16 states, and the target's choices on them."""

    def __init__(self, bench: Bench) -> None:
        self._training = bench.recipe.training
        self._target = read_target_head(bench.target_folder)
        self._reader = StateReader(bench.states("held-out", "bf16"))
        pack_tokens, steps = self._training.pack_tokens, self._training.unroll_steps
        survey = survey_samples(
            self._reader, self._reader.samples, pack_tokens, steps, len(self._target.embed_VD), lambda *_: None
        )
        self._packs: list[list[Document]] = pack_documents(survey.documents, pack_tokens)
        self._counted = [sum(counts) for counts in zip(*(d.counted_K for d in survey.documents), strict=True)]
        self._validation = Validation(self._reader, self._packs, self._target.lm_head_VD, steps)
        self._validation.choose(torch.device("cpu"), lambda *_: None)
        self.samples = len(survey.documents)

    @torch.no_grad()
    def measure(self, drafter_folder: Path) -> Figures:
        """Simulated acceptance length, and the training's own loss over all draft tokens."""
        base = read_base(drafter_folder, self._target, [])
        assert base.vocab_map is not None
        drafter, target_ids_W = build_drafter(base), base.vocab_map.target_ids_W
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=self._training.autocast == "bfloat16")
        counts = self._validation.acceptances(drafter, self._target.embed_VD, target_ids_W, autocast, lambda *_: None)
        teacher_head_WD = self._target.lm_head_VD[target_ids_W].bfloat16()
        loss = 0.0
        for documents in self._packs:
            pack = read_pack(self._reader, documents)
            plan = plan_unroll(pack.answer_T, pack.start_T, self._training.unroll_steps)
            with autocast:
                drafts_KSD = unroll(drafter, self._target.embed_VD, pack, plan)
            weight_KS = loss_weights(plan, self._training.step_weight, self._counted, torch.float32)
            teacher = pack.teacher[plan.predictor_S]
            loss += soft_cross_entropy(
                drafts_KSD, drafter.lm_head.weight, teacher, teacher_head_WD, weight_KS
            ).loss.item()
        return Figures(acceptance_length(counts), loss)


Arm = Callable[[Bench, int], Path]
"""Trains with a seed; the folder of the best drafter."""

WINDOWS = 3
ARMS: dict[str, tuple[Layout, Arm]] = {
    "bf16": ("bf16", lambda bench, seed: bench.trained_whole("bf16", seed)),
    "fp8": ("fp8", lambda bench, seed: bench.trained_whole("fp8", seed)),
    "fp8+topk": ("fp8+topk", lambda bench, seed: bench.trained_whole("fp8+topk", seed)),
    f"bf16, windows={WINDOWS}": ("bf16", lambda bench, seed: bench.trained_in_windows("bf16", WINDOWS, seed)),
}
"""By name: the layout, whose bytes are told, and the arm. The first is what the others are compared with."""


def table(bench: Bench, found: Mapping[str, list[Figures]]) -> str:
    """Mean over the seeds and, in brackets, the lowest and highest; the loss of length is seed by seed."""
    width, layers = bench.shape.hidden_size, len(bench.layer_ids)
    plain = found[next(iter(ARMS))]
    whole = bytes_per_token("bf16", width, layers)
    lines = [
        "| arm | B/token | of bf16 | of bf16 at width 7168 | acceptance length | lost against bf16 | held-out loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, figures in found.items():
        layout = ARMS[name][0]
        small = bytes_per_token(layout, width, layers, bench.recipe.extraction.top_k)
        at_kimi = bytes_per_token(layout, 7168, 3, bench.recipe.extraction.top_k) / bytes_per_token("bf16", 7168, 3)
        lost = [p.acceptance_length - f.acceptance_length for p, f in zip(plain, figures, strict=True)]
        cells = [name, f"{small:,}", f"{small / whole:.2f}", f"{at_kimi:.2f}"]
        cells += [_spread([f.acceptance_length for f in figures]), _spread(lost), _spread([f.loss for f in figures])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def run(folder: Path, quick: bool, seeds: int) -> bool:
    """Train and measure every arm, print the table; whether the smallest layout costs little enough."""
    bench = Bench(folder, quick)
    held_out = HeldOut(bench)
    found: dict[str, list[Figures]] = {name: [] for name in ARMS}
    for seed in range(seeds):  # seed by seed: interrupted, it has some seeds of every arm
        for name, (_, arm) in ARMS.items():
            found[name].append(held_out.measure(arm(bench, seed)))
            print(f"{name}, seed {seed}: {found[name][-1]}", flush=True)
    plain, small = (statistics.mean(f.acceptance_length for f in found[name]) for name in ("bf16", "fp8+topk"))
    print(f"\n{held_out.samples} held-out samples, {seeds} seeds\n\n{table(bench, found)}\n")
    written = {name: [dataclasses.asdict(f) for f in figures] for name, figures in found.items()}
    write_atomically(folder / ("quick.json" if quick else "full.json"), json.dumps(written, indent=2))
    holds = plain - small <= LARGEST_LOSS
    verdict = "met" if holds else "missed"
    print(f"goal of at most {LARGEST_LOSS} of acceptance length lost: {verdict}, {plain - small:+.4f}")
    print(f"ratio={small / plain:.4f} acceptance length of fp8+topk against bf16")
    return holds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what demo_answers has filled; everything else is put there too")
    parser.add_argument("--quick", action="store_true", help="few samples, one seed")
    arguments = parser.parse_args()
    held = run(arguments.folder.absolute(), arguments.quick, seeds=1 if arguments.quick else 3)
    raise SystemExit(0 if held or arguments.quick else 1)
