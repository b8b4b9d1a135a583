"""Proofs: encodes what nodes hash, and checks a block against its hash."""
