"""Training of text classifiers for guidance and evaluation: `prepare` labelled arrays, `label` more, `train`."""
