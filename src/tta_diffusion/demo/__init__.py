"""A tour of the shipped model: a few prompts under control, plain and guided feedback side by side."""
