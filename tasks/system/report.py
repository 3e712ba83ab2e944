"""The evaluation's report: one record of figures, and the table and text made from it."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.recipe import Evaluation, to_json
from tasks.system.acceptance import Arm, differing_share
from tasks.system.files import write_atomically
from tasks.system.plots import plot_acceptance
from tasks.system.verdict import Verdict, length_interval

REPORT_NAME, REPORT_TEXT_NAME, PICTURE_NAME = "report.json", "report.md", "acceptance.png"
PER_PROMPT_NAME = "per_prompt.jsonl"


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that the verdict rests on."""

    verdict: Verdict
    speed_sentence: str
    arms: list[dict[str, Any]]
    """Figures of each arm, in the order none, base, trained."""
    settings: dict[str, Any]
    drafter: str
    """Absolute path of the trained drafter."""

    def last_line(self) -> str:
        """The line that scripts read."""
        lengths = {arm["name"]: arm["acceptance_length"] for arm in self.arms}
        return (
            f"verdict: {self.verdict.verdict} acceptance_length={lengths['trained']:.3f} "
            f"base={lengths['base']:.3f} prompts={self.verdict.prompts} drafter={self.drafter}"
        )


def build_report(arms: list[Arm], verdict: Verdict, spec: Evaluation, prompts: int, drafter: Path) -> Report:
    """Put the figures of all arms together.

    Args:
        arms: No drafter, base, trained.
        verdict: Of trained against base.
        spec: The settings that the figures hold for.
        prompts: How many were asked.
        drafter: Folder of the trained drafter.
    """
    none = arms[0]
    rows = []
    for arm in arms:
        low, high = length_interval(arm.histograms, spec.confidence)
        rows.append(
            {
                "name": arm.name,
                "acceptance_length": arm.acceptance_length,
                "acceptance_length_low": low,
                "acceptance_length_high": high,
                "acceptance_by_position": arm.acceptance_by_position,
                "drafts": arm.drafts,
                "accepted_tokens": arm.accepted_tokens,
                "tokens_per_second": arm.tokens_per_second,
                "speed_up": arm.tokens_per_second / none.tokens_per_second,
                "differing_answers_share": differing_share(arm, none),
            }
        )
    settings = {name: value for name, value in asdict(spec).items() if name != "engine"} | {"prompts": prompts}
    return Report(
        verdict=verdict, speed_sentence=_speed(rows[-1], spec), arms=rows, settings=settings, drafter=str(drafter)
    )


def _speed(trained: dict[str, Any], spec: Evaluation) -> str:
    ratio = trained["speed_up"]
    word = "faster" if ratio >= 1 else "slower"
    return (
        f"With it, serving is {word} than without a drafter at {spec.in_flight} in flight on this machine: "
        f"{trained['tokens_per_second']:.0f} tok/s, {ratio:.2f} times."
    )


def table_rows(report: Report) -> list[dict[str, str]]:
    """The report as rows for people."""
    return [
        {
            "drafter": arm["name"],
            "acceptance length": "-" if arm["name"] == "none" else f"{arm['acceptance_length']:.3f}",
            "interval": "-"
            if arm["name"] == "none"
            else f"{arm['acceptance_length_low']:.3f} to {arm['acceptance_length_high']:.3f}",
            "by position": " / ".join(f"{share:.3f}" for share in arm["acceptance_by_position"]) or "-",
            "tok/s": f"{arm['tokens_per_second']:.0f}",
            "speed-up": f"{arm['speed_up']:.2f} x",
            "answers that differ": "-" if arm["name"] == "none" else f"{arm['differing_answers_share']:.1%}",
        }
        for arm in report.arms
    ]


def text_table(rows: list[dict[str, str]]) -> str:
    """Rows as an aligned plain-text table, the first column left, the others right."""
    columns = list(rows[0])
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in columns}

    def line(cells: dict[str, str]) -> str:
        first, *others = columns
        return "  ".join([cells[first].ljust(widths[first]), *(cells[c].rjust(widths[c]) for c in others)]).rstrip()

    return "\n".join([line({column: column for column in columns}), *(line(row) for row in rows)])


def markdown_report(report: Report) -> str:
    """The report as Markdown."""
    rows = table_rows(report)
    table = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    table += ["| " + " | ".join(row.values()) + " |" for row in rows]
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.settings.items())
    serve = f'--speculative-config \'{{"method":"eagle3","model":"{report.drafter}","num_speculative_tokens":%d}}\''
    return "\n".join(
        [
            f"# {report.verdict.verdict}",
            "",
            report.verdict.sentence(report.settings["confidence"]),
            report.speed_sentence,
            "",
            *table,
            "",
            "Acceptance length is 1 + accepted / drafts from vLLM's counters, as differences over the prompts. "
            f"Settings: {settings}.",
            "",
            "Serve it with vLLM:",
            "",
            "    " + serve % report.settings["draft_tokens"],
            "",
        ]
    )


def write_report(folder: Path, report: Report, arms: list[Arm]) -> list[str]:
    """Write the report as JSON, Markdown and a chart, and what each prompt gave; returns the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / REPORT_NAME, to_json(report))
    write_atomically(folder / REPORT_TEXT_NAME, markdown_report(report))
    write_atomically(folder / PER_PROMPT_NAME, "".join(json.dumps(line) + "\n" for line in _per_prompt(arms)))
    plot_acceptance([arm for arm in arms if arm.accepted_at], folder / PICTURE_NAME)
    return [REPORT_NAME, REPORT_TEXT_NAME, PER_PROMPT_NAME, PICTURE_NAME]


def _per_prompt(arms: list[Arm]) -> Iterator[dict[str, Any]]:
    for arm in arms:
        for sample_id, token_ids in arm.answers.items():
            histogram = arm.histograms.get(sample_id, [])
            yield {"arm": arm.name, "sample_id": sample_id, "answer_tokens": len(token_ids), "accepted": histogram}
