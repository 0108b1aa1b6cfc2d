# JupyterLab with the course, at the address that it prints:
#
#     docker build -t minidist .
#     docker run --rm -it -p 127.0.0.1:8888:8888 --shm-size=1g -v minidist-work:/srv/minidist/work minidist
#
# The volume keeps your answers. Ranks share memory in /dev/shm, of which Docker gives 64 MB unless it is told.
FROM python:3.11-slim-bookworm

# PyTorch's builds for CPUs, which save 4 GB. With GPUs: docker build --build-arg PIP_EXTRA_INDEX_URL= .
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --shell /bin/bash learner \
    && mkdir -p /srv/minidist/work \
    && chown -R learner:learner /srv/minidist

USER learner
WORKDIR /srv/minidist
COPY --chown=learner:learner . .
RUN make .venv/.course && rm -rf ~/.cache/pip

ENV PATH=/srv/minidist/.venv/bin:$PATH
EXPOSE 8888
CMD ["make", "lab", "LAB_FLAGS=--ip=0.0.0.0 --no-browser"]
