# The image of job runs of EMR Serverless: docs/how-to/run_tasks_on_emr_serverless.md says how to build it.
ARG RELEASE
FROM public.ecr.aws/emr-serverless/spark/${RELEASE}:latest
USER root
COPY requirements.lock pyproject.toml README.md /build/
COPY tracelake /build/tracelake
COPY trace_udf /build/trace_udf
# As the image of the services, but for Spark itself, which is that of the release.
RUN dnf install -y python3.12 python3.12-pip && dnf clean all \
    && python3.12 -m venv /opt/venv \
    && cd /build && grep -E '^(pip|setuptools|wheel)==' requirements.lock > build-tools.txt \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r build-tools.txt \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes --no-deps --no-build-isolation -r requirements.lock \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && rm -rf /build
COPY deploy/job_run.py /opt/trace/deploy/job_run.py
ENV PYSPARK_PYTHON=/opt/venv/bin/python PYSPARK_DRIVER_PYTHON=/opt/venv/bin/python
USER hadoop:hadoop
