"""The builder's passes over the layers of a plan, one module each."""
