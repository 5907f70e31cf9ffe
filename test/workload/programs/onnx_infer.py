#!/usr/bin/env python3
"""Runs a network with onnxruntime's CUDA provider, each time on its own result."""

import argparse
import time

try:
    import numpy
    import onnx
    import onnxruntime
except ModuleNotFoundError as missing:
    if missing.name not in ("onnx", "onnxruntime"):
        raise
    print("not installed:", missing.name)
    raise SystemExit(77)

if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
    print("not installed: onnxruntime's CUDA provider")
    raise SystemExit(77)


def network():
    """y = tanh(x W), with random weights."""
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy.random.default_rng(1).standard_normal((512, 512), dtype=numpy.float32) / 16
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Tanh", ["xw"], ["y"])],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 512])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model.SerializeToString()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    a = p.parse_args()

    session = onnxruntime.InferenceSession(network(), providers=["CUDAExecutionProvider"])
    x = numpy.random.default_rng(2).standard_normal((64, 512), dtype=numpy.float32)
    for step in range(1, a.steps + 1):
        (x,) = session.run(None, {"x": x})
        print("step", step, float(x.astype(numpy.float64).sum()).hex(), flush=True)
        time.sleep(a.pause)
    print("done", flush=True)


if __name__ == "__main__":
    main()
