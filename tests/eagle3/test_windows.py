"""Slices trained one after the other: one training, whatever interrupts it."""

import dataclasses
import shutil

import pytest
import torch
from safetensors.torch import load_file
from small_states import write_responses, write_states
from small_trainings import curve, exported_sha256, run, with_training

import tasks.eagle3.train
import tasks.eagle3.trainer
from tasks.eagle3.hand_over import read_hand_over
from tasks.eagle3.optimizers import learning_rate
from tasks.eagle3.packing import read_pack
from tasks.eagle3.schedule import planned_steps
from tasks.eagle3.spec import TrainingSpec, WindowedTraining
from tasks.errors import BadProduct, Stopped
from tasks.hidden_states.windows import Window, in_window, slice_numbers
from tasks.system.files import sha256_of
from tasks.system.responses import Response

COUNT = 3
LENGTHS = (12, 9, 15, 11, 14, 8, 10, 13, 7, 12, 16, 9, 10, 13)
"""Of twelve samples to train on and two held out."""


@pytest.fixture
def whole(spec: TrainingSpec) -> TrainingSpec:
    """One epoch over twelve samples in packs of at most two."""
    shutil.rmtree(spec.states_folder)
    write_states(spec.states_folder, lengths=LENGTHS)
    return with_training(spec, epochs=1, pack_tokens=24, validate_every_steps=3, checkpoint_every_seconds=1e-9)


@pytest.fixture
def responses(whole: TrainingSpec) -> list[Response]:
    return write_responses(whole.states_folder.parent / "responses.jsonl", whole.states_folder)


def windows_of(whole: TrainingSpec, responses: list[Response], name: str = "windows") -> list[TrainingSpec]:
    """The trainings of all windows, with their stores; the number of steps before is filled in as they are made."""
    folder = whole.states_folder.parent
    specs: list[TrainingSpec] = []
    for index in range(COUNT):
        window = Window(index, COUNT)
        states = folder / f"states-{index}"
        if not states.exists():
            write_states(states, lengths=LENGTHS, only={r.sample_id for r in in_window(responses, window)})
        windowed = WindowedTraining(
            window=window,
            responses_path=folder / "responses.jsonl",
            longest_tokens=1024,
            previous_folder=specs[-1].out_folder if specs else None,
            steps_before=0,
        )
        out = folder / f"{name}-{index}"
        specs.append(dataclasses.replace(whole, states_folder=states, out_folder=out, windowed=windowed))
    return specs


def at_step(spec: TrainingSpec, steps_before: int) -> TrainingSpec:
    assert spec.windowed is not None
    return dataclasses.replace(spec, windowed=dataclasses.replace(spec.windowed, steps_before=steps_before))


def train_all(specs: list[TrainingSpec]) -> list[int]:
    """Train every window; the step that each ended with."""
    ends = [0]
    for spec in specs:
        ends.append(run(at_step(spec, ends[-1])).steps)
    return ends[1:]


def test_one_window_is_the_training_without_windows_byte_by_byte(whole, responses, tmp_path):
    windowed = WindowedTraining(
        window=Window(0, 1),
        responses_path=tmp_path / "responses.jsonl",
        longest_tokens=1024,
        previous_folder=None,
        steps_before=0,
    )
    one = dataclasses.replace(whole, out_folder=tmp_path / "one", windowed=windowed)
    assert run(one) == run(whole)
    assert exported_sha256(one) == exported_sha256(whole) and curve(one) == curve(whole)


def test_windows_are_one_training_over_the_slices_in_their_order(whole, responses, monkeypatch):
    """As one process that had all states and took the same steps: weights, curve and all, byte by byte."""
    specs = windows_of(whole, responses)
    train_all(specs)
    numbers = slice_numbers({r.sample_id: r.length_tokens for r in responses if r.split == "training"}, COUNT)

    def slice_by_slice(documents, training):
        slices = [[d for d in documents if numbers[d.entry.sample_id] == n] for n in range(COUNT)]
        return [step for part in slices for step in planned_steps(part, training)]

    monkeypatch.setattr(tasks.eagle3.train, "planned_steps", slice_by_slice)
    run(whole)
    assert curve(specs[-1]) == curve(whole)
    assert exported_sha256(specs[-1]) == exported_sha256(whole)


def test_in_one_epoch_every_sample_is_trained_on_exactly_once(whole, responses, monkeypatch):
    seen: list[str] = []

    def noting(reader, documents):
        seen.extend(document.entry.sample_id for document in documents if document.entry.split == "training")
        return read_pack(reader, documents)

    monkeypatch.setattr(tasks.eagle3.trainer, "read_pack", noting)
    train_all(windows_of(whole, responses))
    assert sorted(seen) == sorted(r.sample_id for r in responses if r.split == "training")


def test_all_epochs_of_a_slice_come_before_the_next_slice(whole, responses, monkeypatch):
    seen: list[str] = []

    def noting(reader, documents):
        seen.extend(document.entry.sample_id for document in documents if document.entry.split == "training")
        return read_pack(reader, documents)

    monkeypatch.setattr(tasks.eagle3.trainer, "read_pack", noting)
    train_all(windows_of(with_training(whole, epochs=2), responses))
    numbers = slice_numbers({r.sample_id: r.length_tokens for r in responses if r.split == "training"}, COUNT)
    order = [numbers[sample_id] for sample_id in seen]
    assert order == sorted(order) and len(order) == 2 * len(numbers)


def test_the_learning_rate_has_one_schedule_over_all_windows(whole, responses):
    specs = windows_of(with_training(whole, epochs=2), responses)
    ends = train_all(specs)
    rows = curve(specs[-1])[1:]
    assert [int(row["step"]) for row in rows] == list(range(1, ends[-1] + 1))
    expected = [learning_rate(step, ends[-1], specs[0].training) for step in range(ends[-1])]
    assert [float(row["learning_rate"]) for row in rows] == expected


def test_the_first_window_knows_the_steps_of_all(whole, responses, tmp_path, capsys):
    specs = windows_of(with_training(whole, epochs=2), responses)
    ends = train_all(specs)
    assert f"window 1 of 3: steps 1 to {ends[0]} of {ends[-1]}" in capsys.readouterr().out


@pytest.mark.fault("resume-is-exact")
@pytest.mark.usefixtures("reported_every_step")
@pytest.mark.parametrize("at", ["first", "last"])
def test_interrupted_in_the_second_window_it_ends_with_the_same_bytes(whole, responses, at):
    through, broken = windows_of(whole, responses, "through"), windows_of(whole, responses, "broken")
    ends = train_all(through)
    first = run(broken[0]).steps
    stop = first + 1 if at == "first" else ends[1]
    with pytest.raises(Stopped):
        run(at_step(broken[1], first), lambda step: step == stop)
    second = run(at_step(broken[1], first)).steps
    run(at_step(broken[2], second))
    assert exported_sha256(broken[-1]) == exported_sha256(through[-1])
    assert curve(broken[-1]) == curve(through[-1])
    assert handed_over(broken[1]) == handed_over(through[1])


def handed_over(spec: TrainingSpec) -> str:
    (path,) = (spec.out_folder / "hand-over").glob("step-*.pt")
    return sha256_of(path)


def test_only_the_last_window_exports_drafters(whole, responses):
    specs = windows_of(whole, responses)
    train_all(specs)
    assert [(s.out_folder / "best" / "model.safetensors").exists() for s in specs] == [False, False, True]


def test_a_draft_vocabulary_from_scratch_is_that_of_all_answers(whole, responses):
    specs = windows_of(whole, responses)
    train_all(specs)
    run(whole)
    ids = [load_file(s.out_folder / "base" / "model.safetensors")["d2t"] for s in (whole, specs[-1])]
    assert torch.equal(*ids)


def test_every_window_is_judged_by_the_same_held_out_samples(whole, responses):
    """The first window's validation of the base is that of the whole store."""
    specs = windows_of(whole, responses)
    assert run(specs[0]).base_acceptance_length == run(whole).base_acceptance_length


def test_a_damaged_hand_over_is_refused_and_named(whole, responses, tmp_path):
    specs = windows_of(whole, responses)
    steps = run(specs[0]).steps
    (path,) = (specs[0].out_folder / "hand-over").glob("step-*.pt")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadProduct, match=r"hand-over has no whole checkpoint of this training .* Delete .*windows-0"):
        run(at_step(specs[1], steps))


def test_a_hand_over_of_another_training_is_not_gone_on_from(whole, responses):
    specs = windows_of(whole, responses)
    run(specs[0])
    with pytest.raises(BadProduct, match="no whole checkpoint of this training"):
        read_hand_over(specs[0].out_folder, {"training": "another"})
