"""Facts about a graph that several stages need: liveness, and dimensions that grow."""
