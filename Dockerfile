# Two stages: the first installs, the second runs, without pip's caches, without root, without the sources.
#
#     docker build --tag stabilityboard:0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" .
#
# The base is pinned by version. A published image has its digest pinned and is signed:
#     docker buildx build --sbom=true --provenance=mode=max --build-arg PYTHON=python:3.12.11-slim-bookworm@sha256:... .

ARG PYTHON=python:3.12.11-slim-bookworm

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/stabilityboard
ENV PATH=/opt/stabilityboard/bin:$PATH
WORKDIR /src
# Pinned packages first: this layer stays cached while only own code changes.
COPY requirements/run.txt requirements/image.txt requirements/
RUN pip install --only-binary :all: -r requirements/run.txt -r requirements/image.txt
COPY LICENSE README.md pyproject.toml ./
COPY client client
COPY backend backend
COPY alerting alerting
COPY frontend frontend
COPY plugins plugins
RUN pip install --no-deps --no-build-isolation ./client .

FROM ${PYTHON}
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Stabilityboard" \
      org.opencontainers.image.description="Watches training of large models and puts it back on track" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0 AND OFL-1.1"
RUN groupadd --system --gid 10001 stability \
 && useradd --system --uid 10001 --gid 10001 --home-dir /data --shell /usr/sbin/nologin stability \
 && install --directory --owner=stability --group=stability --mode=0700 /data
COPY --from=build /opt/stabilityboard /opt/stabilityboard
# Beyond loopback the server does not start before a key exists: stabilityboard keys create NAME
ENV PATH=/opt/stabilityboard/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    STABILITY_HOST=0.0.0.0 \
    STABILITY_PORT=8080 \
    STABILITY_DATA_DIR=/data
# A number, not a name: Kubernetes can't tell that a name is not root (runAsNonRoot).
USER 10001:10001
VOLUME /data
EXPOSE 8080
# Liveness. Readiness is /readyz: a restart cures no absent Redis.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['STABILITY_PORT']}/livez\", timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["stabilityboard"]
CMD ["up"]
