"""A chain of our own, for tests and demos: made from a seed, served as a node would, moved and broken on command.

block_content.py  what happens in a block          build_block.py  hashes, roots, bloom: the block itself
chain.py          branches, head, reorgs           journal.py      the same chain again after a restart
methods.py        JSON-RPC methods                 faults.py       a node that lags, lies, throttles, breaks off
server.py         HTTP                             process.py      a real server process, from a test
"""
