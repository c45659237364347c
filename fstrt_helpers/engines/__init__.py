"""ONNX to TensorRT: which TensorRT, profiles, builds, and a cache that nothing unvouched for leaves."""
