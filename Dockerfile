# One image for server and clients. Built from the repository's root: docker build --tag unstale .
#
#   docker run --rm unstale demo
#
# A server that others connect to needs keys, and a volume for its run: see k8s/README.md.
#
# On x86-64 the PyTorch that pip takes by default computes on the CPU and on CUDA, and is large. Where the CPU is enough,
# name an index that has CPU builds; of the same version pip prefers those, because of the suffix that they bear:
#
#   docker build --tag unstale --build-arg PIP_EXTRA_INDEX_URL=... .

FROM python:3.11-slim-bookworm AS build
ARG PIP_EXTRA_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/unstale
ENV PATH=/opt/unstale/bin:$PATH
WORKDIR /source

# What unstale needs: a layer that a change of the code leaves as it is.
COPY pyproject.toml constraints.txt ./
RUN python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        > requirements.txt \
    && pip install --constraint constraints.txt --requirement requirements.txt

COPY README.md LICENSE ./
COPY services services
COPY proto proto
RUN pip install --no-deps .

FROM python:3.11-slim-bookworm
COPY --from=build /opt/unstale /opt/unstale
ENV PATH=/opt/unstale/bin:$PATH PYTHONUNBUFFERED=1
# A number, so that Kubernetes can tell that it is not root. What the options do not place elsewhere is written to /tmp,
# runs and what clients keep, too: it is gone with the container.
USER 10001:10001
WORKDIR /tmp
EXPOSE 5555 9464
ENTRYPOINT ["unstale"]
