# The production worker: no embedded broker, no chDB, no tests. Pins and hashes come from deploy/requirements.lock.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/citegauge
ENV PATH=/opt/citegauge/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY deploy/requirements.lock ./
RUN pip install --require-hashes -r requirements.lock
COPY pyproject.toml LICENSE README.md ./
COPY sql ./sql
COPY docs/runbooks ./docs/runbooks
COPY service ./service
RUN pip install --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home citegauge
COPY --from=build /opt/citegauge /opt/citegauge
# Inside a container the endpoints have to be reachable from outside of it; what is published is Compose's decision.
ENV PATH=/opt/citegauge/bin:$PATH PYTHONUNBUFFERED=1 CITEGAUGE_WEB__HOST=0.0.0.0
USER citegauge
EXPOSE 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9464/healthz', timeout=4)"]
ENTRYPOINT ["citegauge"]
CMD ["run"]
