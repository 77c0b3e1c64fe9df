"""Whole numbers of 8 bits: from 1 to 255 around 128 in memory, -127 to 127 in products."""

LARGEST, MIDDLE = 127, 128
GROUP = 64  # columns of a weight: only whole groups of them are lowered
LEAST = 1e-5  # of the scale of a row
