"""Training of text classifiers for guidance and evaluation: `prepare` labelled arrays, then `train` on them."""
