"""What the ONNX standard itself says: operators defined by other operators, attributes' defaults,
and the operators that no compilation can take, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from meshc.frontend.builder import Value
from meshc.frontend.reader import ONNX_TYPES

_RANDOM = "because it draws random numbers, which no reference repeats"
_RECURRENT = "because it is a recurrent network, which meshc does not compile"
_STRINGS = "because it works on strings"
_SEQUENCES = "because it works on sequences or optional values, not on tensors"
_IMAGES = "because it resamples images, which no transformer needs at run time"
_SIGNALS = "because it transforms signals, which meshc does not compile"
_BOXES = "because the size of its result depends on run-time data"
_SEARCH = "because it is a search around a decoder; export the decoder and use 'meshc generate'"
_PADDING = "because the size of its result depends on run-time data; export without it"
_CONVOLUTION = "because it is a quantised convolution; keep convolutions in a float type"
_SQUARES = "because it solves equations or measures distances, which meshc does not compile"
_CUDA = "because its layout is that of another target; export for CPU"
_PAGES = "because its cache lies in pages placed at run time; export with a contiguous cache"
REASONS: dict[tuple[str, str], str] = {
    **{("", op): why for why, ops in {
        _RANDOM: ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
                  "Bernoulli", "Multinomial"),
        _RECURRENT: ("RNN", "LSTM", "GRU"),
        _STRINGS: ("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch",
                   "TfIdfVectorizer"),
        _SEQUENCES: ("SequenceMap",),
        _IMAGES: ("Resize", "Upsample", "GridSample", "RoiAlign", "MaxRoiPool", "MaxUnpool",
                  "DeformConv", "Col2Im", "ImageDecoder", "ConvTranspose"),
        _SIGNALS: ("DFT", "STFT", "MelWeightMatrix"),
        _BOXES: ("NonMaxSuppression", "Unique"),
        _SQUARES: ("Det",),
        _CONVOLUTION: ("ConvInteger", "QLinearConv"),
    }.items() for op in ops},
    **{("com.microsoft", op): why for why, ops in {
        _SEARCH: ("BeamSearch", "WhisperBeamSearch", "GreedySearch", "Sampling"),
        _PAGES: ("PagedAttention",),
        _PADDING: ("RemovePadding", "RestorePadding"),
        _SQUARES: ("Inverse", "CDist"),
        _CUDA: ("NhwcConv", "NhwcFusedConv", "NhwcMaxPool", "GroupNorm", "SkipGroupNorm"),
        _IMAGES: ("UnfoldTensor", "GridSample", "CropAndResize"),
    }.items() for op in ops},
}  # fmt: skip


@cache
def _schema(op: str, opset: int) -> Any:
    from onnx import defs

    try:
        return defs.get_schema(op, opset, "")
    except defs.SchemaError:
        return None


def exists(op: str, opset: int = 0) -> bool:
    """Whether the standard has the operator, in an operator set or in any."""
    from onnx import defs

    return _schema(op, opset or defs.onnx_opset_version()) is not None


def defined(domain: str, op: str, opset: int) -> bool:
    """Whether the standard defines the operator by others."""
    schema = None if domain or ("", op) in REASONS else _schema(op, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def definition(op: str, opset: int, protos: Sequence[Any], x: Sequence[Value | None]) -> Any:
    """The FunctionProto that the standard gives for an operator on operands of these types; None
    where there is none."""
    import onnx
    from onnx import helper

    schema = _schema(op, opset)
    function = onnx.FunctionProto()
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        version = max(versions, default=min(schema.function_opset_versions))
        function.ParseFromString(schema.get_function_with_opset_version(version))
        return function
    names = ["" if v is None else f"x{i}" for i, v in enumerate(x)]
    node = helper.make_node(op, names, [o.name for o in schema.outputs])
    node.attribute.extend(protos)
    types = [
        helper.make_tensor_type_proto(ONNX_TYPES[v.dtype], v.shape) for v in x if v is not None
    ]
    versions = schema.context_dependent_function_opset_versions
    version = max([v for v in versions if v <= opset], default=min(versions))
    data = schema.get_context_dependent_function_with_opset_version(
        version, node.SerializeToString(), [t.SerializeToString() for t in types]
    )
    if not data:
        return None
    function.ParseFromString(data)
    return function


def unread(domain: str, op: str, opset: int, protos: Sequence[Any], read: set[str]) -> list[str]:
    """Attributes that a lowering has not looked at and whose value is not the default."""
    left = [p for p in protos if p.name not in read]
    if not left:
        return []
    schema = None if domain else _schema(op, opset)
    found = []
    for p in left:
        known = schema.attributes.get(p.name) if schema is not None else None
        if known is not None and known.default_value.type:
            default = type(p)()
            default.CopyFrom(known.default_value)
            if _value(default) == _value(p):
                continue
        found.append(p.name)
    return found


def _value(attr: Any) -> Any:
    from onnx import helper

    return helper.get_attribute_value(attr)
