# CPU: docker build -t official-ext .
# GPU: docker build -t official-ext:gpu --build-arg EXTRAS=console,gpu .
#
# TensorFlow's `and-cuda` packages bring CUDA: the host needs the NVIDIA driver and its container toolkit alone.
FROM python:3.12-slim-bookworm

ARG EXTRAS=console,language_models

WORKDIR /opt/official_ext
COPY setup.py pyproject.toml constraints.txt README.md LICENSE ./
COPY official_ext official_ext
COPY experiments experiments
RUN pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

# A mounted folder with tasks, data and runs. Its files may belong to any user, who needs a writable home.
WORKDIR /work
ENV HOME=/tmp PYTHONUNBUFFERED=1

ENTRYPOINT ["official-ext"]
CMD ["--help"]
