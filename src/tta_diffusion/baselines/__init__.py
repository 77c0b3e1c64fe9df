"""The systems that the paper compares with, on any Hugging Face model: how they write, and how they are trained."""
