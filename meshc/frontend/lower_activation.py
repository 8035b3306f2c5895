"""Activations: one map each, halves computed in fp32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.formula import Formula, Term, formula
from meshc.ir.dtypes import FLOATS

Values = Sequence[Value | None]
# The Selu constants of Klambauer et al., Self-Normalizing Neural Networks, 2017, in fp32.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _elu(f: Formula, x: Term, alpha: float) -> None:
    grown = f("mul", f("sub", f("exp", x), 1.0), alpha)
    f("where", f.test("less", x, 0.0), grown, x)


def _celu(f: Formula, x: Term, alpha: float) -> None:
    grown = f("mul", f("sub", f("exp", f("div", x, alpha)), 1.0), alpha)
    f("where", f.test("less", x, 0.0), grown, x)


def _selu(f: Formula, x: Term, alpha: float, gamma: float) -> None:
    grown = f("mul", f("sub", f("exp", x), 1.0), alpha)
    f("mul", f("where", f.test("greater", x, 0.0), x, grown), gamma)


def _leaky_relu(f: Formula, x: Term, alpha: float) -> None:
    f("where", f.test("less", x, 0.0), f("mul", x, alpha), x)


def _thresholded_relu(f: Formula, x: Term, alpha: float) -> None:
    f("where", f.test("greater", x, alpha), x, 0.0)


def _hard_sigmoid(f: Formula, x: Term, alpha: float, beta: float) -> None:
    f("clip", f("add", f("mul", x, alpha), beta), 0.0, 1.0)


def _hard_swish(f: Formula, x: Term) -> None:
    f("hardswish", x)


def _swish(f: Formula, x: Term, alpha: float) -> None:
    f("mul", x, f("sigmoid", f("mul", x, alpha) if alpha != 1.0 else x))


def _mish(f: Formula, x: Term) -> None:
    f("mul", x, f("tanh", f("softplus", x)))


def _softsign(f: Formula, x: Term) -> None:
    f("div", x, f("add", f("abs", x), 1.0))


def _shrink(f: Formula, x: Term, lambd: float, bias: float) -> None:
    low = f("where", f.test("less", x, -lambd), f("add", x, bias), 0.0)
    f("where", f.test("greater", x, lambd), f("sub", x, bias), low)


def _activation(write: Callable[..., None], **defaults: float) -> Lowering:
    """Float attributes by name with the values that an absent one has, in order of use."""

    def lower(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
        v = need(x, 0)
        numbers = [float(call.attr(name, value)) for name, value in defaults.items()]
        inner = "" if v.dtype in FLOATS else "fp64"
        return [formula(b, [v], lambda f, a: write(f, a, *numbers), inner=inner)]

    return lower


def prelu(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """The slope broadcasts to the data."""

    def write(f: Formula, v: Term, slope: Term) -> None:
        f("where", f.test("less", v, 0), f("mul", v, slope), v)

    return [formula(b, [need(x, 0), need(x, 1)], write)]


def gelu_function(call: Call) -> str:
    """The map function of a Gelu with this `approximate`."""
    kind = call.attr("approximate", "none")
    if kind not in ("none", "tanh"):
        raise Unsupported(f"with approximate '{kind}'")
    return "gelu_tanh" if kind == "tanh" else "gelu"


def gelu(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    return [b.apply(gelu_function(call), need(x, 0))]


def _biased(fn: str) -> Lowering:
    """com.microsoft: x + bias, the bias optional, through a function."""

    def lower(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
        v, bias = need(x, 0), optional(x, 1)
        if bias is None:
            return [b.apply(fn, v)]
        return [formula(b, [v, bias], lambda f, a, c: f(fn, f("add", a, c)))]

    return lower


# name in a fused operator → (the expression, the parameters' defaults in order)
_FUSED: dict[str, tuple[Callable[..., object], tuple[float, ...]]] = {
    "Relu": (lambda f, x: f("relu", x), ()),
    "Tanh": (lambda f, x: f("tanh", x), ()),
    "Sigmoid": (lambda f, x: f("sigmoid", x), ()),
    "Softplus": (lambda f, x: f("softplus", x), ()),
    "Clip": (lambda f, x, low, high: f("clip", x, low, high), (-inf, inf)),
    "HardSigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "HardSwish": (_hard_swish, ()),
    "LeakyRelu": (_leaky_relu, (0.01,)),
    "Elu": (_elu, (1.0,)),
    "Selu": (_selu, (_SELU_ALPHA, _SELU_GAMMA)),
    "Softsign": (_softsign, ()),
    "ThresholdedRelu": (_thresholded_relu, (1.0,)),
}


def activated(b: Builder, v: Value, name: str, given: Sequence[float]) -> Value:
    """The activation that a fused operator names, with its parameters."""
    if name not in _FUSED:
        raise Unsupported(f"with activation '{name}'")
    write, defaults = _FUSED[name]
    if len(given) > len(defaults):
        raise Unsupported(f"with {len(given)} parameters of activation '{name}'")
    numbers = (*given, *defaults[len(given) :])
    return formula(b, [v], lambda f, x: write(f, x, *numbers), suffix=name.lower())


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "Elu"): _activation(_elu, alpha=1.0),
    ("", "Celu"): _activation(_celu, alpha=1.0),
    ("", "Selu"): _activation(_selu, alpha=_SELU_ALPHA, gamma=_SELU_GAMMA),
    ("", "LeakyRelu"): _activation(_leaky_relu, alpha=0.01),
    ("", "ThresholdedRelu"): _activation(_thresholded_relu, alpha=1.0),
    ("", "HardSigmoid"): _activation(_hard_sigmoid, alpha=0.2, beta=0.5),
    ("", "HardSwish"): _activation(_hard_swish),
    ("", "Swish"): _activation(_swish, alpha=1.0),
    ("", "Mish"): _activation(_mish),
    ("", "Softsign"): _activation(_softsign),
    ("", "Shrink"): _activation(_shrink, lambd=0.5, bias=0.0),
    ("", "PRelu"): prelu,
    ("", "Gelu"): gelu,
    ("com.microsoft", "Gelu"): gelu,
    ("com.microsoft", "BiasGelu"): _biased("gelu"),
    ("com.microsoft", "FastGelu"): _biased("gelu_tanh"),
    ("com.microsoft", "QuickGelu"): _activation(_swish, alpha=1.702),
}
