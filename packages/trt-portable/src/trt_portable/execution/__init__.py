"""What a context runs: programs of layers, recorded launches, replay, and weights on their way."""
