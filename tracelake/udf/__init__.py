"""Runs untrusted code in sandboxes, behind Lambda's Invoke and Runtime APIs.

In the order of one invocation: `process` (the listener), `invoke` (one call), `fetch_bundle`, `pool` (warm sandboxes),
`sandbox_host` (one sandbox with its listeners), `sandbox_contents` (started by `tracelake.sandbox`), `runtime_api`,
`task_api_proxy` and `object_proxy` (what the function can reach), `forward_output` (its logs).
"""
