"""Speed and memory of the sampler beside the published algorithm, the bare networks and an autoregressive model."""
