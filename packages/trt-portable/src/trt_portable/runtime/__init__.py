"""Engines as applications hold them: loading, contexts, refits, what they tell of themselves."""
