"""Layer classes, by family."""
