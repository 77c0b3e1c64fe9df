"""What writes the texts: our pipeline, a file of a peer's outputs, or anything else with `generate`."""
