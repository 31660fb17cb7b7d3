"""From a plan to programs over local shards."""
