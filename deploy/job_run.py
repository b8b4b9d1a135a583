"""What a job run of EMR Serverless begins with: `spark-submit job_run.py s3://BUCKET/KEY REGION [ENDPOINT]`."""

import sys

from tracelake.wiring import run_job_from

run_job_from(*sys.argv[1:])
