"""Layer classes, by family. `trt_portable.network.serialization` says which module has which kind of layer."""
