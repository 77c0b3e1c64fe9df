"""Control of the form of a text, word by word: its syntax tree, one of its constituents, its parts of speech.

A word is a token here, so these controls are for models whose tokens are words (docs/lexical.md).
"""
