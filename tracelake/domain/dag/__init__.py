"""The DAG language: YAML to a checked DAG."""
