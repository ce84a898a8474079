# The benchmark in a container: DALI, libxnvme and what `pip install '.[bench]'` brings.
#
#   docker build -t dali_storage .
#   docker run --rm --gpus all --ipc=host -v /data:/data:ro dali_storage \
#       compare --datadir /data/imagenet --device-id 0
#
# Build arguments:
#   BASE    an image with apt-get: Debian or Ubuntu, with or without CUDA
#   EXTRA   cuda12 or cuda13: which packages of DALI and CuPy are installed
#   XNVME   conda: libxnvme from conda-forge; none: without libxnvme
#
# The default backend uses kernel AIO, which Docker's default seccomp profile allows. Reads into GPU
# memory need --privileged, /dev/hugepages, /dev/dmabuf_import and modules on the host.
# make test-image builds and runs this file; docs/docker.md says what that does not cover.
ARG BASE=nvidia/cuda:12.6.3-runtime-ubuntu24.04
ARG XNVME=conda

FROM ${BASE} AS python
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*

# Only /opt/venv of this stage and /opt/xnvme of the next are copied into the image.
FROM python AS venv
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv \
    && python3 -m venv /opt/venv
ARG EXTRA=cuda12
COPY . /src
RUN /opt/venv/bin/pip install "/src[${EXTRA},bench]"

# Neither Debian nor Ubuntu packages libxnvme.
FROM python AS libxnvme
ARG MICROMAMBA=2.3.0-1
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates curl \
    && curl -fsSL -o /usr/local/bin/micromamba \
        "https://github.com/mamba-org/micromamba-releases/releases/download/${MICROMAMBA}/micromamba-linux-64" \
    && chmod +x /usr/local/bin/micromamba \
    && micromamba create -y -p /opt/xnvme -c conda-forge libxnvme=0.7.5

FROM python AS xnvme-none

FROM python AS xnvme-conda
COPY --from=libxnvme /opt/xnvme /opt/xnvme
ENV XNVME_LIBRARY_PATH=/opt/xnvme/lib/libxnvme.so

FROM xnvme-${XNVME}
COPY --from=venv /opt/venv /opt/venv
COPY benchmark.py /opt/dali_storage/
COPY benchmarks /opt/dali_storage/benchmarks
# Any user may run it (--user): nothing is written but to /tmp. HOME is for the caches of libraries.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp
WORKDIR /tmp
ENTRYPOINT ["python", "/opt/dali_storage/benchmark.py"]
CMD ["--help"]
