"""PyTorch to ONNX: export, inspection, precision."""
