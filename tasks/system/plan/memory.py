"""Memory: room in the KV cache, how many requests really run at once, and what training takes on one card."""

from dataclasses import dataclass, replace

from tasks.recipe import Hardware, ModelFacts, Recipe
from tasks.system.plan.engine_arguments import EngineFacts, engine_facts
from tasks.system.plan.model import drafter_parameters
from tasks.system.plan.tokens import Tokens

HELD_SHARE = 0.6
"""Of its mean answer, what a request in flight holds at a moment: half, and more, because long answers stay longer."""
# Of a trained parameter: float32 weight, gradient and two moments, and autocast's 16-bit copy.
TRAINING_BYTES_PER_PARAMETER = 4 + 4 + 8 + 2
# Kept for the backward pass of one step: about so many values of the width, and of the MLP's, a token.
KEPT_WIDTHS, KEPT_MLP_WIDTHS = 16, 4
# Logits are computed in blocks, of which about three are there at once.
LOGITS_BYTES, CPU_LOGITS_BYTES = 3 * 512_000_000, 3 * 16_000_000


@dataclass(frozen=True)
class KvRoom:
    """Tokens that the KV cache holds with one setting."""

    kv_type: str
    context_parallel: int
    formula_tokens: int
    """From sizes and shares alone."""
    reported_tokens: int | None
    """What users of this machine report."""
    running: int
    """Requests of those asked at once that find room."""

    @property
    def tokens(self) -> int:
        """What the plan counts with: the report where there is one."""
        return self.formula_tokens if self.reported_tokens is None else self.reported_tokens

    @property
    def deviation_share(self) -> float | None:
        """How far the formula is above (or, negative, below) the report."""
        return self.formula_tokens / self.reported_tokens - 1 if self.reported_tokens else None


@dataclass(frozen=True)
class Memory:
    """What fits into memory."""

    bytes_per_token: int
    """In the KV cache of one card, context parallelism aside."""
    window_tokens: int
    held_tokens: int
    """That one request in flight holds, on average."""
    in_flight: int
    kv: KvRoom
    """With the recipe's own arguments."""
    most_sequences: int
    """That the engine takes at once."""
    alternatives: list[KvRoom]
    """With arguments that make more room."""
    training_bytes: int
    """On one card."""
    card_bytes: int
    """0: not known."""

    @property
    def queued(self) -> int:
        """Requests that wait at the server."""
        return self.in_flight - self.kv.running

    @property
    def training_fits(self) -> bool | None:
        """Whether the training fits one card; None when its memory is not known."""
        return self.training_bytes <= self.card_bytes if self.card_bytes else None


def plan_memory(recipe: Recipe, facts: ModelFacts, tokens: Tokens) -> Memory | None:
    """Memory of the serving engine and of the training; None where the model's KV cache is not known.

    Raises:
        RecipeError: An engine argument cannot be counted with.
    """
    engine = engine_facts(recipe.server.engine)
    if not kv_values(facts, engine.tensor_parallel):
        return None
    mean = tokens.prompt_tokens / tokens.samples, tokens.answer_tokens / tokens.samples
    held = round(mean[0] + HELD_SHARE * mean[1])
    kv = _room(recipe, facts, engine, held)
    others = [_room(recipe, facts, other, held) for other in _roomier(engine, recipe.hardware)]
    return Memory(
        bytes_per_token=kv_bytes_per_token(facts, engine),
        window_tokens=recipe.target.window_tokens,
        held_tokens=held,
        in_flight=recipe.inference.in_flight,
        kv=kv,
        most_sequences=engine.most_sequences,
        alternatives=[other for other in others if other.tokens > kv.tokens],
        training_bytes=training_memory_bytes(recipe, facts),
        card_bytes=recipe.hardware.gpu_memory_bytes,
    )


def kv_values(facts: ModelFacts, tensor_parallel: int) -> int:
    """Values that a token takes in one card's KV cache; 0: not known.

    MLA keeps one compressed row a layer on every card; other attention keeps keys and values of a card's heads.
    """
    if facts.kv_lora_rank:
        return facts.layers * (facts.kv_lora_rank + facts.qk_rope_head_dim)
    heads_of_a_card = -(-facts.kv_heads // tensor_parallel)
    return facts.layers * 2 * heads_of_a_card * facts.head_dim


def kv_bytes_per_token(facts: ModelFacts, engine: EngineFacts) -> int:
    """Bytes that a token takes in one card's KV cache."""
    return kv_values(facts, engine.tensor_parallel) * engine.kv_bytes


def kv_room_tokens(facts: ModelFacts, engine: EngineFacts, hardware: Hardware) -> int:
    """Tokens that the KV cache holds: memory share less weights and overhead, spread over context parallel cards."""
    if engine.cpu_kv_bytes or not hardware.gpus:
        free = engine.cpu_kv_bytes
    else:
        used = facts.weights_bytes // engine.tensor_parallel + hardware.engine_overhead_bytes
        free = round(hardware.gpu_memory_bytes * engine.memory_share) - used
    return max(0, free) // kv_bytes_per_token(facts, engine) * engine.context_parallel


def _room(recipe: Recipe, facts: ModelFacts, engine: EngineFacts, held: int) -> KvRoom:
    formula = kv_room_tokens(facts, engine, recipe.hardware)
    reported = recipe.hardware.reported_kv_tokens.get(f"{engine.kv_name}/{engine.context_parallel}")
    room = KvRoom(engine.kv_name, engine.context_parallel, formula, reported, 0)
    running = min(recipe.inference.in_flight, engine.most_sequences, room.tokens // held)
    return replace(room, running=running)


def _roomier(engine: EngineFacts, hardware: Hardware) -> list[EngineFacts]:
    if not hardware.gpus:
        return []
    spread = engine.tensor_parallel
    return [
        replace(engine, kv_type="fp8"),
        replace(engine, context_parallel=spread),
        replace(engine, kv_type="fp8", context_parallel=spread),
    ]


def training_memory_bytes(recipe: Recipe, facts: ModelFacts) -> int:
    """An estimate of what training takes on its device: states of the optimizer, frozen embeddings, one pack's work."""
    training, width = recipe.training, facts.hidden_size
    parameters = drafter_parameters(recipe, facts)
    vocab = min(recipe.drafter.draft_vocab_tokens, facts.vocab_tokens)
    intermediate = recipe.drafter.intermediate_size or 3 * width
    weights = parameters * (TRAINING_BYTES_PER_PARAMETER + (4 if training.pull_to_base else 0))
    frozen = 2 * width * (facts.vocab_tokens + vocab)
    a_token = training.unroll_steps * (KEPT_WIDTHS * width + KEPT_MLP_WIDTHS * intermediate) * 2
    logits = CPU_LOGITS_BYTES if training.device == "cpu" else LOGITS_BYTES
    return weights + frozen + training.pack_tokens * a_token + logits


def advice(memory: Memory) -> list[str]:
    """What to change, one sentence each; nothing when all that is asked runs."""
    kv, sentences = memory.kv, []
    if kv.tokens < memory.window_tokens:
        sentences.append(
            f"the KV cache has room for {kv.tokens:,} tokens, less than the window of {memory.window_tokens:,}: vLLM "
            "will refuse to start. Lower target.window_tokens, or make room as below."
        )
    if memory.queued > 0:
        limited = kv.running == memory.most_sequences
        ways = " or ".join(
            f"{_arguments(kv, other)} ({other.running} run)" for other in memory.alternatives if not limited
        )
        change = f"Add {ways} to server.engine.arguments, or set" if ways else "Set"
        why = f"sequences (--max-num-seqs={memory.most_sequences})" if limited else "KV room"
        sentences.append(
            f"{memory.in_flight} in flight: {kv.running} run, {memory.queued} queue, for want of {why}. "
            f"{change} inference.in_flight={max(1, kv.running)}."
        )
    if memory.training_fits is False:
        sentences.append(
            f"training takes about {memory.training_bytes / 1e9:.0f} GB, more than a card's "
            f"{memory.card_bytes / 1e9:.0f} GB. Lower training.pack_tokens (it is identity)."
        )
    return sentences


def _arguments(now: KvRoom, other: KvRoom) -> str:
    changes = []
    if other.kv_type != now.kv_type:
        changes.append(f"--kv-cache-dtype={other.kv_type}")
    if other.context_parallel != now.context_parallel:
        changes.append(f"--decode-context-parallel-size={other.context_parallel}")
    return " ".join(changes)
