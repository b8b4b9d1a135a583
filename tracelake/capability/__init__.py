"""Capability tokens: what one attempt of one task may access, signed by the Dispatcher, verified by every task API.

In order: `claims` (the content of a token), `jws` (how it is encoded and signed, and the public keys), `keyset` (the
published keys as a verifier knows them), `verifier` (whether a token is valid). Dispatcher, Query service and sink
share this, so that they cannot judge a token differently. The port `Signer` signs; `store.signing_keys` decides which
key does.
"""
