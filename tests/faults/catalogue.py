"""The faults that happened to others, by short id, and what must happen here; tests carry these ids as marks.

A test marked ``@pytest.mark.fault("port-taken")`` shows that the fault is survived. Several tests may share
an id: it passes when all of them do. ``make test-faults`` prints one line for each.
"""

CATALOGUE: dict[str, str] = {
    # Server: start, health, stop
    "slow-load": "a load beyond vLLM's own 600 s that makes progress succeeds: our limit is the one that counts",
    "stalled-load": "a load that stalls is ended, with the log's tail and its phase; no-progress and total limits",
    "port-refuses-while-loading": "refused and child alive is loading; refused and child dead fails at once",
    "sigterm-lost-in-startup": "stop works at any phase of the start, with proof that nothing is left",
    "engine-orphans": "processes that a killed API process leaves are ended, now or by the next run, and no others",
    "flow-killed-with-server": "the server dies with a flow process that is killed",
    "cancelled-in-any-stage": "cancelled in any stage: everything that was started is gone, state is resumable",
    "same-failure-twice": "the same start-up failure twice in a row is permanent",
    "foreign-server": "somebody else's server is awaited, checked, used and never stopped by us",
    "weights-not-on-disk": "weights are fetched and verified by us, with progress, before vLLM starts",
    "port-taken": "a taken port is said before anything is started",
    "healthy-but-stuck": "a server that makes no tokens is restarted or given up, with the counts saved",
    "engine-dies-mid-run": "an engine that dies in mid-run is restarted, bounded, no row lost or doubled",
    "slow-first-request": "one warm-up request with a long limit goes before the fan-out",
    "rejected-by-vllm": "what vLLM rejects is told by its own reason in one line",
    "bad-layer-ids": "layer ids are checked against the model's config before anything is loaded",
    # Drafter download
    "wrong-bytes": "wrong bytes of the right size are found by checksum, deleted, fetched again, then named",
    "broken-transfer": "a cut, stalled or killed transfer is resumed; unfinished files never count; a stall limit",
    "hub-busy": "429 with Retry-After and 503 are honoured and bounded",
    "hub-refuses": "401, 403, 404 and no network are told apart, permanent ones not retried",
    "hub-away": "everything there and the hub away: works offline; with a file missing, names it",
    "old-hub-arguments": "arguments that huggingface_hub no longer has are not used",
    "download-fails-while-loading": "the download fails while the server loads: the flow fails, the server is stopped",
    "volume-too-small-for-download": "refused before the first byte, with both numbers",
    # Prompts and inference
    "bad-rows": "malformed prompt rows are used as far as is safe, or skipped, counted, with the reason",
    "changing-columns": "columns whose type changes between rows are checked by us",
    "slow-answer": "our limit counts, the SDK's retries are off, no duplicate rows",
    "fan-out": "one client, a pool as wide as the fan-out, the real number in flight is what was asked",
    "client-exceptions": "openai's own exception classes are caught",
    "prompt-over-window": "4xx is never retried; the row is rejected with the reason; max_tokens is clamped",
    "reasoning-field": "`reasoning` and the older `reasoning_content` are both read",
    "thinking-used-the-budget": "an answer that is all thinking is kept, marked, and its share reported",
    "answers-cut-or-looping": "the share of cut or looping answers is watched; over a limit the run stops early",
    "killed-in-inference": "killed at any moment: the torn line goes, all others are kept",
    "resumed-with-other-settings": "another model, sampling, prompt set or order is never mixed in",
    "server-gone-for-good": "stops after a number of failures in a row, with how many are done",
    "thinking-switch": "a strict boolean, sent as the template wants it",
    # Hidden states
    "disk-fills": "stops before the disk is full, what is written is valid, goes on when there is room",
    "chunked-prefill": "rows captured are the tokens, for every sample, with chunked prefill; prefix caching is off",
    "sample-of-window-length": "a sample as long as the window is skipped with the reason",
    "unknown-model-runner": "a model runner that the hooks were not made for is said before the model is loaded",
    "bad-states": "zero, constant, NaN, Inf, equal or wrong-layer states are rejected, counted; too many stop the run",
    "bad-shard": "an empty, cut, long or flipped shard is treated as missing and rewritten",
    "killed-while-writing-a-shard": "no half shard is ever read; the rest is kept",
    "norm-confusion": "before or after the norm is stated in the store; the trainer refuses what it does not know",
    # Training and export
    "base-vocab-map-kept": "finetuning keeps the base's vocabulary map byte for byte",
    "bad-vocab-map": "a missing, zero, short, unordered or out-of-range map is refused on load and on export",
    "nothing-to-learn": "samples without a supervised token are skipped and counted; too few stop the run",
    "nan-loss": "NaN or Inf stops before the next save and names step and samples",
    "resume-is-exact": "10 steps equal 5, resume and 5, bit for bit",
    "only-needed-tensors": "only embed, norm and lm_head are read from the target, by index; a missing shard is named",
    "too-little-data": "a drafter that learned nothing is not better, not a success",
    "layer-ids-differ": "a drafter whose layer ids differ from the captured ones is refused",
    "answers-differ": "greedy output that differs with the drafter is reported",
    # Prefect
    "task-timeout-does-not-stop": "child processes have deadlines of our own",
    "api-away": "an API that is away for a minute in mid-run does not end the run",
    "api-down-at-start": "an API that is down at the start is said before the server is started",
    "one-task-per-stage": "one task run a stage, progress by artifact",
    "chatty-child": "a child that prints without end goes to a rotated file and is never blocked",
    "errors-cross-edges": "plain errors and records cross task and process edges",
    "two-runs-at-once": "a second run on the same data or GPUs is refused or waits; never a second server",
    # Beyond the list
    "kill-anywhere": "kill -9 at random moments of every stage: nothing lost, nothing doubled, the same weights",
    "zombie-run": "a run whose process was killed does not stay Running for ever",
    "full-disk-in-every-stage": "each writing stage stops before the disk is full and goes on after space is freed",
}
