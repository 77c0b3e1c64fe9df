"""Only speed, nothing of the method: kernels, loops in C, CUDA graphs, memory used again."""
