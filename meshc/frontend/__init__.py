"""The ONNX importer: the only part of meshc that knows ONNX and ONNX Runtime."""

from meshc.frontend.assembly import TensorData
from meshc.frontend.bind import Bound, bind
from meshc.frontend.binding import workloads
from meshc.frontend.expertload import observed, read_load
from meshc.frontend.kept import (
    Kept,
    appended_to,
    check_past,
    check_room,
    counting,
    entries_after,
)
from meshc.frontend.operators import known_operators, supported
from meshc.frontend.oracle import rounding_spread, run_oracle
from meshc.frontend.pairs import check_pair
from meshc.frontend.reader import Model, load_model
from meshc.frontend.storage import parse as parse_dtypes
from meshc.frontend.storage import store
from meshc.frontend.storedgraph import as_stored
from meshc.frontend.survey import FATES, Fate, Survey, operator_name
from meshc.frontend.weights import absent_weights

__all__ = [
    "FATES",
    "Bound",
    "Fate",
    "Kept",
    "Model",
    "Survey",
    "TensorData",
    "absent_weights",
    "appended_to",
    "as_stored",
    "bind",
    "check_pair",
    "check_past",
    "check_room",
    "counting",
    "entries_after",
    "known_operators",
    "load_model",
    "observed",
    "operator_name",
    "parse_dtypes",
    "read_load",
    "rounding_spread",
    "run_oracle",
    "store",
    "supported",
    "workloads",
]
