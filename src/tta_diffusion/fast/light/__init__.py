"""The shipped model's networks and tokenizer without transformers, whose import takes longer than a first step.

Weights, names and outputs are those of the transformers classes (`tests/fast/test_light.py`); all that is not shipped
is loaded by transformers.
"""
