# docs/deploy.md says how to build the variants, and what each argument and setting is for.
#
#   docker build -t worker --build-arg MODEL_ID=stabilityai/sdxl-turbo --build-arg TARGETS=rtx_4090,l40s .
#
# Without MODEL_ID the image has no weights: the worker bakes the model of its setting MODEL_ID onto the network volume.

ARG PYTHON=3.12.12-slim-bookworm
ARG EXTRA=cuda12
ARG MODEL_ID=""
ARG MODEL_REVISION=""
ARG DTYPE=bfloat16
ARG TARGETS=""
ARG SHAPES=""
ARG SLOTS=1,2,4

# Packages, the same for baking and for serving.
FROM python:${PYTHON} AS packages
ARG EXTRA
ENV UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PROJECT_ENVIRONMENT=/opt/venv \
    UV_PYTHON=/usr/local/bin/python3 \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /packages
COPY pyproject.toml uv.lock ./
# What is removed is named by no other library, and by no code that this project runs: multi-GPU solvers, a second
# copy of NVRTC, and device code for kernels that span machines.
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --frozen --no-default-groups ${EXTRA:+--extra "$EXTRA"} \
    && rm -rf /opt/venv/lib/python3.12/site-packages/nvidia/cusolver/lib/libcusolverMg.so.* \
        /opt/venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/*.alt.so.* \
        /opt/venv/lib/python3.12/site-packages/nvidia/nvshmem/lib/libnvshmem_device*

# Our code, with its bytecode: the root of a worker may be read-only.
FROM packages AS code
WORKDIR /app
COPY handler.py test_input.json ./
COPY worker worker
COPY builder builder
RUN /opt/venv/bin/python -m compileall -q . && chmod -R a+rX .

# The model and its programs.
FROM code AS bake
# Debian keeps only the newest build of a compiler, so that a pinned one would soon be gone.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV HF_HOME=/tmp/huggingface JAX_PLATFORMS=cpu PATH=/opt/venv/bin:$PATH
ARG MODEL_ID MODEL_REVISION DTYPE
# The token is read from a secret, which leaves no trace in the image or its history.
RUN --mount=type=secret,id=hf_token \
    if [ -f /run/secrets/hf_token ]; then HF_TOKEN="$(cat /run/secrets/hf_token)"; export HF_TOKEN; fi; \
    if [ -z "$MODEL_ID" ]; then mkdir /model; else \
    python -m builder bake --source "$MODEL_ID${MODEL_REVISION:+@$MODEL_REVISION}" --out /model --dtype "$DTYPE"; fi
ARG TARGETS SHAPES SLOTS
RUN if [ -n "$TARGETS" ]; then \
    python -m builder compile --model /model --target "$TARGETS" --slots "$SLOTS" ${SHAPES:+--shapes "$SHAPES"}; fi

FROM python:${PYTHON}
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin worker
COPY --from=packages /opt/venv /opt/venv
COPY --from=bake /model /model
COPY --from=code /app /app
WORKDIR /app
ARG MODEL_ID MODEL_REVISION DTYPE TARGETS SHAPES
LABEL org.opencontainers.image.title="worker-jax-diffusion" \
      org.opencontainers.image.description="Runpod serverless worker that serves diffusion image models with JAX" \
      model.id="${MODEL_ID}" model.revision="${MODEL_REVISION}" model.dtype="${DTYPE}" \
      programs.targets="${TARGETS}" programs.shapes="${SHAPES}"
# A baked model needs no hub; without one, the worker fetches its model at the first start.
ENV HF_HUB_OFFLINE=${MODEL_ID:+1} \
    HOME=/tmp \
    MODEL_DIR=/model \
    OUTPUT_DIR=/tmp/output \
    PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_VISIBLE_DEVICES=all \
    RUNPOD_INIT_TIMEOUT=1200 \
    XLA_PYTHON_CLIENT_MEM_FRACTION=0.9 \
    XLA_PYTHON_CLIENT_PREALLOCATE=false
USER 10001:10001
CMD ["python", "-u", "handler.py"]
