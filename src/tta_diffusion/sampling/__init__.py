"""The loop from noise to text."""
