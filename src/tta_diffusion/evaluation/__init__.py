"""Measuring texts: fluency, diversity, control, toxicity, similarity to references, and how sure a number is."""
