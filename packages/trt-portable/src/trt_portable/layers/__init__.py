"""Layer classes, by family. `trt_portable.network.layer_kinds` says which module has which kind of layer."""
