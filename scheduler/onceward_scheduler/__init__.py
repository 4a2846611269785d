"""Time -> command: each tick of a schedule is emitted once, by the partition's leader."""
