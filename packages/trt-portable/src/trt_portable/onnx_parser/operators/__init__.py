"""One converter per operator of ONNX, by family; `registry` finds them."""
