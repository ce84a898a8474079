# benchmark.py on a GPU machine, with every backend's libraries.
#
#   docker build -t dali_storage .
#   docker run --rm --gpus all --ipc=host -v /data:/data:ro dali_storage \
#       compare --datadir /data/imagenet --device-id 0
#
# Docker's default seccomp profile allows kernel AIO, which the python-file backend needs.
FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        bzip2 ca-certificates curl python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

# libxnvme is in no distribution's packages for Ubuntu; conda-forge builds it.
ARG MICROMAMBA=2.3.0-1
RUN curl -fsSL -o /usr/local/bin/micromamba \
        "https://github.com/mamba-org/micromamba-releases/releases/download/${MICROMAMBA}/micromamba-linux-64" \
    && chmod +x /usr/local/bin/micromamba \
    && micromamba create -y -p /opt/xnvme -c conda-forge libxnvme=0.7.5 \
    && micromamba clean -y --all
ENV XNVME_LIBRARY_PATH=/opt/xnvme/lib/libxnvme.so

RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /opt/dali_storage
COPY . .
RUN pip install --no-cache-dir '.[cuda12,bench]'

ENTRYPOINT ["python", "benchmark.py"]
CMD ["--help"]
