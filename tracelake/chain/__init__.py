"""EVM chains, and nothing of Trace's control plane: ask nodes, believe none of them, hand out Arrow tables.

rpc_pool.py     which nodes, how fast, how much is checked          rpc.py        asks them: batches, retries, health
fetch.py        a block range -> tables                             tip.py        heads and headers, for a follower
verify.py       is this block what its hash says?                   schemas.py    the tables' columns
abi.py          logs -> typed event columns                         devchain/     a chain of our own, to try on
"""
