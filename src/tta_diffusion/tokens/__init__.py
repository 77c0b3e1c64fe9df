"""What a text is while it is being written."""
