"""Interfaces of plugins and their creators, and the registry. `trt_portable.plugin` makes plugins of functions."""
