"""EVM chains, without Trace's control plane: reads blocks from nodes, verifies them, returns Arrow tables.

rpc_pool.py     which nodes, how fast, how much is checked          rpc.py        calls them: batches, retries, health
fetch.py        a block range -> tables                             tip.py        heads and headers, for a follower
verify.py       checks blocks against their hashes                  schemas.py    the tables' columns
abi.py          logs -> typed event columns
"""
