"""Untrusted code: a host of the Lambda Runtime API, the sandbox around it, and the few doors out of that.

In the order of one invocation: `process` (the door), `invoke` (one call, start to end), `fetch_bundle`, `pool` (warm
sandboxes), `host` (one of them with all that is its own), `sandbox` (how it is made: `bubblewrap`, `seccomp`,
`furnish`), `inside` (the init within), `runtime_api` (what the function is handed, and what it hands back), `bridge`
and `object_door` (what it can reach), `tell_lines` (its logs).
"""
