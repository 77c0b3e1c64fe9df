"""Training of the networks behind lexical control: of spans, of tags, and of a chart parser from a treebank."""
