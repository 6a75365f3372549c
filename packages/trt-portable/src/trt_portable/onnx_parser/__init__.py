"""Networks from ONNX models: `OnnxParser`, what it reads, and one converter per operator.

It needs the `onnx` package (the extra `trt-portable[onnx]`), which is imported when a parser is made.
"""
