"""EVM chains, without Trace's control plane: reads blocks from nodes, verifies them, returns Arrow tables.

fetch.py   a block range -> tables                       nodes/    pools of nodes: calls, batches, retries, health
tip.py     heads and headers, for a follower             proofs/   checks blocks against their hashes
schemas.py the tables' columns                           abi/      logs -> typed event columns
"""
