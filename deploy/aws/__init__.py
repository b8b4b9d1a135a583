"""CloudFormation for AWS, rendered from Python into `deploy/aws/trace.json` (`make templates`)."""
