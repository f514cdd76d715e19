# One image for server, clients and injector. Built from the repository's root:
#
#   docker build --tag unstale:0.1.0 .
#   docker run --rm --init unstale:0.1.0 demo
#
# docs/deploy.md says how to run it. On x86-64 the PyTorch that pip takes by default computes on the CPU and on CUDA,
# and takes 6.5 GB; for the CPU alone it is 1.3 GB. Where that is enough, name an index that has CPU builds of torch and
# torchvision; of the same version pip prefers those, because of the suffix that they bear. VARIANT is what the image is
# to be, and the build fails where it is not:
#
#   docker build --tag unstale:0.1.0 --build-arg VARIANT=cpu --build-arg PIP_EXTRA_INDEX_URL=... .
#   docker build --tag unstale:0.1.0-cuda --build-arg VARIANT=cuda .

# To pin it to the byte, put the digest behind it that `docker buildx imagetools inspect` shows: ...bookworm@sha256:...
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ARG PIP_EXTRA_INDEX_URL
# Versions of what it needs and of what builds it, of which a later pip asks in a variable of its own.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_CONSTRAINT=/source/constraints.txt PIP_BUILD_CONSTRAINT=/source/constraints.txt
RUN python -m venv /opt/unstale
ENV PATH=/opt/unstale/bin:$PATH
WORKDIR /source

# What unstale needs: a layer that a change of the code leaves as it is.
COPY pyproject.toml constraints.txt ./
RUN python -c 'import tomllib as t; needs = t.load(open("pyproject.toml", "rb"))["project"]["dependencies"]; \
print(*(need for need in needs if not need.startswith("unstale-client")), sep="\n")' > requirements.txt \
    && pip install --requirement requirements.txt

# cpu, cuda, or nothing for whatever pip took. A torchvision that was built for another PyTorch is found here, too.
ARG VARIANT=
RUN found=$(python -c 'import torch, torchvision; print("cuda" if torch.version.cuda else "cpu")') \
    && if [ "${VARIANT:-$found}" != "$found" ]; then \
        echo "PyTorch is of the variant $found, expected $VARIANT; name its index as PIP_EXTRA_INDEX_URL" >&2; \
        exit 1; \
    fi

COPY README.md LICENSE ./
COPY services services
COPY proto proto
COPY client client
# Headers are for who compiles against PyTorch, and pip for who installs something.
RUN pip install --no-deps ./client . \
    && rm -rf /opt/unstale/lib/python3*/site-packages/torch/include \
    && pip uninstall --yes pip

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="unstale" \
      org.opencontainers.image.description="Federated learning that does not wait: server, clients and injector" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 unstale \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin unstale
COPY --from=build /opt/unstale /opt/unstale
# HOME: libraries keep caches there, and everywhere else may be read-only. A client is asked how it is, too, and needs
# an address for that; with several in one network, name others, or null.
ENV PATH=/opt/unstale/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LOGNAME=unstale \
    UNSTALE_CLIENT__HTTP_ADDRESS=127.0.0.1:9466 HEALTH_PORTS="9464 9465 9466"
# A number, so that Kubernetes can tell that it is not root. What the options do not place elsewhere is written to /tmp,
# runs and what clients keep, too: it is gone with the container.
USER 10001:10001
WORKDIR /tmp
EXPOSE 5555 5556 9464 9465 9466
# Whichever of server, injector and client runs here. Kubernetes has probes of its own.
HEALTHCHECK --start-period=5m --interval=30s --timeout=10s --retries=3 \
    CMD ["sh", "-c", "for port in $HEALTH_PORTS; do \
        python -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=8)' \
            http://127.0.0.1:$port/healthz 2>/dev/null && exit; done; exit 1"]
ENTRYPOINT ["unstale"]
