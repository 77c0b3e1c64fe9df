"""Benchmarks: tasks with prompts and labels, methods that write, scorers that judge, tables beside the paper's."""
