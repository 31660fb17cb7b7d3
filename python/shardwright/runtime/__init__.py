"""Runtime: collectives, sharded state, execution on real or simulated ranks."""
