# The image of every process but the runner: `docker build -t trace .`; docs/how-to/run_on_aws.md says how to run it.
FROM python:3.12-slim-bookworm AS build
WORKDIR /build
COPY requirements.lock pyproject.toml README.md ./
# Exactly what the lock names, by hash. Build tools first: pyspark comes as source, and is built with them.
RUN python -m venv /opt/venv \
    && grep -E '^(pip|setuptools|wheel)==' requirements.lock > build-tools.txt \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r build-tools.txt \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes --no-deps --no-build-isolation -r requirements.lock
COPY tracelake ./tracelake
COPY trace_udf ./trace_udf
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.12-slim-bookworm
RUN groupadd --gid 10001 trace \
    && useradd --uid 10001 --gid trace --no-create-home --home-dir /var/lib/trace --shell /usr/sbin/nologin trace \
    && install -d -o trace -g trace -m 0700 /var/lib/trace /run/trace
COPY --from=build /opt/venv /opt/venv
COPY deploy /opt/trace/deploy
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/opt/trace TRACE_HOME=/var/lib/trace TRACE_METRICS__PORT=9100 \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME ["/var/lib/trace", "/run/trace", "/tmp"]
HEALTHCHECK --interval=15s --timeout=10s --start-period=120s --retries=4 CMD ["/opt/trace/deploy/image/health"]
ENTRYPOINT ["/opt/trace/deploy/image/start"]
CMD ["--help"]
