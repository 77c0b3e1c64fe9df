"""Measuring texts: fluency, diversity, control, toxicity, likeness to references, and how sure a number is."""
