"""The paper's appendix as code: discrete duality, the fluctuation bound, the noise-budget program.

Everything here is a pure function of numbers or tensors of any shape, computes in float64 and returns
float64.
"""
