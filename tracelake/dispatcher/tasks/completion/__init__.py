"""How an attempt ends: its outputs are checked and committed, or its failure is recorded."""
