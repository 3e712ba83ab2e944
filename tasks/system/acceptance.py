"""What a drafter does for a served model: acceptance from vLLM's own counters, speed, and the answers themselves."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasks.errors import DeadlineReached, Stopped
from tasks.recipe import Engine, Evaluation, Inference, Server, from_json, to_json
from tasks.system.engine_child import OnProgress, Progress
from tasks.system.files import write_atomically
from tasks.system.generation import Answer, Rejected, Sampling, Tally, ask_all
from tasks.system.prompts import Prompt
from tasks.system.run import Run
from tasks.system.vllm_server import counters, speculative_arguments, start_server, stop_server

COUNTERS = "vllm:spec_decode"
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


ARM_NAMES = ("none", "base", "trained")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of serving the same prompts."""

    name: str
    drafts: int = 0
    """Verification steps."""
    accepted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """Accepted draft tokens by position in the draft."""
    tokens_per_second: float = 0.0
    answers: dict[str, list[int]] = field(default_factory=dict)
    """Sample id to the answer's token ids."""
    histograms: dict[str, list[int]] = field(default_factory=dict)
    """Sample id to verification steps by number of accepted draft tokens; empty without a drafter."""

    @property
    def acceptance_length(self) -> float:
        """Tokens a verification step gives: 1 + accepted / drafts."""
        return 1.0 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of the drafts whose token at this position was accepted."""
        return [accepted / self.drafts if self.drafts else 0.0 for accepted in self.accepted_at]


def measure_arms(
    run: Run,
    model_folder: Path,
    drafters: Mapping[str, Path | None],
    prompts: list[Prompt],
    kept_in: Path,
    say: Callable[[str], None],
    on_progress: OnProgress,
) -> list[Arm]:
    """Serve the target once for every drafter (None: without one) and ask the same prompts.

    Each arm costs a load of the target, so a measured arm is kept and not measured again.

    Args:
        run: The run.
        model_folder: Checkpoint of the target.
        drafters: Name of the arm to the drafter's folder.
        prompts: What is asked.
        kept_in: Folder where measured arms are kept; made when missing.
        say: Gets a line when a server's phase changes.
        on_progress: Gets the prompts done over all arms.

    Raises:
        DeadlineReached: The run's deadline came; arms that are measured are kept.
    """
    deadline = run.deadline.of_stages
    arms: list[Arm] = []
    for name, folder in drafters.items():

        def add_earlier_arms(progress: Progress) -> None:
            done = progress.done + len(arms) * len(prompts)
            on_progress(dataclasses.replace(progress, done=done, total=len(drafters) * len(prompts)))

        kept = kept_in / f"{name}.json"
        if not kept.exists():
            reached = DeadlineReached(f"evaluation {len(arms)} of {len(drafters)} arms")
            if deadline.is_winding_down:
                raise reached
            say(f"serving {describe_arm(name)}")
            try:
                arm = measure_arm(run, name, model_folder, folder, prompts, add_earlier_arms)
            except Stopped as stop:
                raise (reached if deadline.is_ending else stop) from None
            kept_in.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, to_json(arm))
        arms.append(from_json(Arm, kept.read_text()))
    return arms


def describe_arm(name: str) -> str:
    """The arm in words."""
    return "without a drafter" if name == "none" else f"with the {name} drafter"


def measure_arm(
    run: Run,
    name: str,
    model_folder: Path,
    drafter_folder: Path | None,
    prompts: list[Prompt],
    on_progress: OnProgress,
) -> Arm:
    """Serve the target with this drafter (or none), ask the prompts, and read what vLLM counted.

    Counters are taken as differences, so that the request that proves the server ready does not count.
    """
    spec = run.recipe.evaluation
    arguments = speculative_arguments(drafter_folder, spec.draft_tokens) if drafter_folder else []
    engine = Engine(arguments=spec.engine.arguments + arguments, environment=spec.engine.environment)
    log_path = run.log_folder / f"evaluation-{name}.log"
    target, server = run.recipe.target, run.recipe.server
    endpoint = start_server(run.engine_python, model_folder, target, server, engine, log_path, lambda _: None)
    answers: list[Answer] = []

    def keep(outcome: Answer | Rejected, tally: Tally) -> None:
        if isinstance(outcome, Answer):
            answers.append(outcome)
        figures = {"tokens_per_second": tally.tokens_per_second}
        on_progress(Progress(f"asking {describe_arm(name)}", tally.done, len(prompts), "prompts", figures))

    try:
        before = counters(endpoint.base_url, COUNTERS)
        tally = ask_all(prompts, endpoint, sampling_of(spec, run.recipe.inference, server), keep)
        after = counters(endpoint.base_url, COUNTERS)
    finally:
        stop_server(endpoint)
    counted = {key: round(after[key] - before.get(key, 0.0)) for key in after}
    return Arm(
        name=name,
        drafts=counted.get(DRAFTS, 0),
        accepted_tokens=counted.get(ACCEPTED, 0),
        accepted_at=[counted.get(f"{ACCEPTED_AT}[{i}]", 0) for i in range(spec.draft_tokens if drafter_folder else 0)],
        tokens_per_second=tally.tokens_per_second,
        answers={answer.prompt.sample_id: answer.response_token_ids for answer in answers},
        histograms={a.prompt.sample_id: a.acceptance_histogram for a in answers if a.acceptance_histogram},
    )


def sampling_of(spec: Evaluation, inference: Inference, server: Server) -> Sampling:
    """The evaluation's request settings; limits and retries are the inference stage's."""
    return Sampling(
        max_new_tokens=spec.max_new_tokens,
        temperature=spec.temperature,
        top_p=1.0,
        in_flight=spec.in_flight,
        request_timeout_seconds=inference.request_timeout_seconds,
        request_retries=inference.request_retries,
        token_stall_seconds=server.token_stall_seconds,
    )


def differing_share(arm: Arm, reference: Arm) -> float:
    """Share of the prompts that both arms answered whose answers differ: greedy drafting must not change them."""
    both = arm.answers.keys() & reference.answers.keys()
    return sum(arm.answers[i] != reference.answers[i] for i in both) / len(both) if both else 0.0
