"""The ONNX importer: the only part of meshc that knows ONNX and ONNX Runtime."""

from meshc.frontend.assembly import TensorData
from meshc.frontend.bind import Bound, bind
from meshc.frontend.binding import workloads
from meshc.frontend.oracle import rounding_spread, run_oracle
from meshc.frontend.reader import Model, load_model
from meshc.frontend.table import operator_table
from meshc.frontend.weights import absent_weights

__all__ = [
    "Bound",
    "Model",
    "TensorData",
    "absent_weights",
    "bind",
    "load_model",
    "operator_table",
    "rounding_spread",
    "run_oracle",
    "workloads",
]
