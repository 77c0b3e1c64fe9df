"""A tour of the shipped model: a few prompts under control, constant and adaptive allocation side by side."""
