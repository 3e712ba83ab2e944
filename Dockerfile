# A worker for a GPU machine: docker build -t hero-run .     (deployments/compose.yaml starts it beside a server)
#
# vLLM's own image, with its Python left as it is, and beside it an environment for the flow: vLLM needs fastapi<0.137,
# Prefect fastapi>=0.139. The project runs from its folder in both.
ARG VLLM_VERSION=0.33.0
FROM vllm/vllm-openai:v${VLLM_VERSION}

WORKDIR /opt/hero-run
COPY pyproject.toml README.md LICENSE ./
COPY blocks ./blocks
COPY deployments ./deployments
COPY flows ./flows
COPY tasks ./tasks

# .venv-engine is where the vLLM engine block looks by default: here, it calls the image's own Python, which may be an
# environment itself and would not be found through a link.
RUN uv venv --seed --python python3 .venv \
    && .venv/bin/python -m pip install --no-cache-dir --editable '.[flow]' \
    && mkdir -p .venv-engine/bin \
    && printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v python3)" > .venv-engine/bin/python \
    && chmod +x .venv-engine/bin/python

# Everything that is to outlive the container is under /data; PYTHONPATH is how vLLM's Python finds the project.
ENV PATH=/opt/hero-run/.venv/bin:$PATH \
    PYTHONPATH=/opt/hero-run \
    PREFECT_HOME=/data/prefect \
    HF_HOME=/data/huggingface \
    VLLM_CACHE_ROOT=/data/vllm-cache \
    DO_NOT_TRACK=1

ENTRYPOINT []
CMD ["hero-run", "worker"]
