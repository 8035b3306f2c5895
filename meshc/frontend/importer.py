"""Walk an ONNX graph once and lower every node that the outputs need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend import rows
from meshc.frontend.axes import check_axes
from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call
from meshc.frontend.control import CONTROL, SEQUENCES, Items, Scope
from meshc.frontend.folding import Const
from meshc.frontend.labels import FIXED
from meshc.frontend.lower_fold import reference
from meshc.frontend.operators import LOWERINGS
from meshc.frontend.reader import DTYPES, SMALL, Model, domain_of
from meshc.frontend.standard import REASONS, defined, definition, exists, unread
from meshc.frontend.stored import small_tensor
from meshc.frontend.survey import Survey
from meshc.frontend.walk import cycle, needed
from meshc.frontend.weights import absence, is_external, read_tensor
from meshc.ir.dtypes import NAMES, NUMPY


class Poison:
    """Result of a node that could not be lowered; what reads it is skipped."""


POISON = Poison()
CONSTANTS = ("value", "value_float", "value_floats", "value_int", "value_ints")
Env = dict[str, "Value | Poison | None"]


@dataclass
class Importer:
    """Interprets nodes over `Value`s; collects what is not supported instead of stopping."""

    model: Model
    builder: Builder
    phase: str
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    weights: dict[str, Value] = field(default_factory=dict)
    # results of equal calls; the operands are kept so that their ids stay taken
    results: dict[tuple[Any, ...], tuple[Sequence[Any], Sequence[Any]]] = field(
        default_factory=dict
    )
    parameters: int = 0
    poison: Poison = POISON
    nameless: dict[str, None] = field(default_factory=dict)  # read, but made by nothing

    survey: Survey | None = None  # where to note what became of every node

    def run(self, env: Env, wanted: Sequence[str]) -> list[Value | Poison | None]:
        """Values of the graph's outputs, given those of its inputs."""
        graph = self.model.proto.graph
        self.nodes(list(graph.node), env, wanted, self.model.opsets, "", {})
        found = [self.look(env, name) for name in wanted]
        for name, value in zip(wanted, found, strict=True):
            if isinstance(value, rows.Picked | rows.Sizes):
                self.failures[name, "as an output whose size run-time data decides"] += 1
            if isinstance(value, Items):
                self.failures[name, "as an output that is a sequence of tensors"] += 1
        return found

    def look(self, env: Env, name: str) -> Value | Poison | None:
        if not name:
            return None
        if name in env:
            return env[name]
        return self._weight(name) if self.model.weight(name) is not None else POISON

    def _weight(self, name: str) -> Value:
        value = self.weights.get(name)
        if value is None:
            tensor = self.model.weight(name)
            value = self.tensor(tensor, name)
            self.weights[name] = value
            self.parameters += int(np.prod(tensor.dims, dtype=np.int64))
        return value

    def tensor(self, tensor: Any, name: str) -> Value:
        """A TensorProto as a constant; large and external ones are read when needed, so that a
        graph is the same with its data files and without."""
        if tensor.data_type in SMALL:
            return small_tensor(self.builder, self.model, tensor, name)
        if tensor.data_type not in DTYPES:
            raise InputError(
                f"Weight '{name}' of '{self.model.path.name}' has the ONNX element type "
                f"{tensor.data_type}, which is not supported; export it in a float type."
            )
        size = int(np.prod(tensor.dims, dtype=np.int64))
        lacks = absence(self.model, tensor)
        outside = is_external(tensor) or bool(lacks)
        if size <= 64 and not outside:
            return self.builder.constant(read_tensor(self.model, tensor), name)
        const = Const(
            tuple(int(d) for d in tensor.dims),
            DTYPES[tensor.data_type],
            FIXED,
            lambda: read_tensor(self.model, tensor),
            outside=outside,
            lacks=lacks,
        )
        return self.builder.value(const, name)

    # -- nodes --------------------------------------------------------------------------------

    def nodes(
        self,
        nodes: Sequence[Any],
        env: Env,
        wanted: Iterable[str],
        opsets: dict[str, int],
        prefix: str,
        attrs: dict[str, Any],
    ) -> None:
        wanted_nodes = needed(nodes, wanted, env)
        if self.survey is not None:
            self.survey.spare(nodes, [i for i, _ in wanted_nodes])
        for i, used in wanted_nodes:
            node = nodes[i]
            names = list(node.input)
            inputs = [self.look(env, n) for n in names]
            for name, value in zip(names, inputs, strict=True):
                if isinstance(value, Poison) and name not in env:
                    self.nameless.setdefault(name)
            special = node.op_type in CONTROL or node.op_type in SEQUENCES
            special = special or any(isinstance(v, Items) for v in inputs)
            if special and not domain_of(node) and self._function_of(node) is None:
                self._control(node, env, Scope(env, opsets, prefix, attrs), inputs)
                continue
            if any(isinstance(v, Poison) for v in inputs):
                known = self._note_unknown(node)
                if self.survey is not None:
                    self.survey.note(node, prefix, None if known else "unsupported", ())
                env.update((n, POISON) for n in node.output if n)
                continue
            operands = [v for v in inputs if not isinstance(v, Poison)]
            while operands and operands[-1] is None:
                operands.pop()
            outputs = self._call(node, operands, used, opsets, prefix, attrs)
            if self.survey is not None:
                bad = any(isinstance(v, Poison) for v in outputs)
                self.survey.note(node, prefix, "unsupported" if bad else None, outputs)
            for name, value in zip(node.output, outputs, strict=False):
                if name:
                    env[name] = value

    def _note_unknown(self, node: Any) -> bool:
        """Whether some binding makes the operator known; it is a failure if none does."""
        key = (domain_of(node), node.op_type)
        known = key in LOWERINGS or key in self.model.functions or key[1] == "Constant"
        if known or defined(*key, self.model.opsets.get(key[0], 1)):
            return True
        self.failures[_label(*key), REASONS.get(key, "")] += 1
        return False

    def _call(
        self,
        node: Any,
        inputs: list[Value | None],
        used: tuple[bool, ...],
        opsets: dict[str, int],
        prefix: str,
        attrs: dict[str, Any],
    ) -> Sequence[Value | Poison | None]:
        """Lower one node, or reuse the result of an equal one."""
        domain, op = domain_of(node), node.op_type
        protos = [_resolved(a, attrs) for a in node.attribute]
        protos = [p for p in protos if p is not None]
        if op == "Constant" and not domain:
            if protos[0].name not in CONSTANTS:
                self.failures["Constant", f"with {protos[0].name}"] += 1
                return [POISON]
            return [self._constant(protos, node.output[0])]
        opset = opsets.get(domain, 1)
        form = tuple(p.SerializeToString() for p in protos)
        key = (domain, op, opset, used, form, *map(id, inputs))
        if key in self.results:
            return self.results[key][0]
        name = prefix + (node.name or next((n for n in node.output if n), op))
        b = self.builder
        b.scope, b.source, b.made = name, name, []
        values = {p.name: _attribute(p) for p in protos}
        call = Call(domain, op, name, values, opset, used, self.phase)
        call.extra["protos"] = protos
        function = self._function_of(node)
        if function is not None:
            inner = self._function(function, inputs, name, protos)
            if not any(isinstance(v, Poison) for v in inner):
                self.results[key] = (inner, inputs)
            return inner
        try:
            check_axes(call, inputs)
            lowering = LOWERINGS.get((domain, op))
            out = self._rows(call, inputs, form)
            if out is None:
                if lowering is None and any(v is not None and v.const is None for v in inputs):
                    if defined(domain, op, opset):
                        return self._defined(call, inputs, key)
                    raise Unsupported(REASONS.get((domain, op), ""))
                out = (lowering or reference)(b, call, inputs)
            ignored = unread(domain, op, opset, protos, call.read)
            if ignored:
                raise Unsupported(f"with {' and '.join(ignored)}")
        except Unsupported as error:
            self.failures[_label(domain, op), str(error)] += 1
            return [POISON] * len(node.output)
        except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
            raise self._misfit(name, _label(domain, op), error) from error
        self._name(out, [prefix + n if n else "" for n in node.output], name)
        self.results[key] = (out, inputs)
        return out

    def _misfit(self, node: str, op: str, error: Exception) -> InputError:
        return InputError(
            f"Node '{node}' ({op}) of '{self.model.path.name}' has operands or attributes that do "
            f"not fit together ({error}); export the model again."
        )

    def _rows(
        self, call: Call, inputs: Sequence[Any], form: tuple[bytes, ...]
    ) -> Sequence[Any] | None:
        """Results of a call on rows that run-time data picks, or that begins to pick some; None
        for all others."""
        if not any(isinstance(v, rows.Picked | rows.Sizes) for v in inputs):
            return rows.begins(self.builder, call, inputs)

        def run(call: Call, operands: Sequence[Value | None]) -> Sequence[Value | None]:
            """Lower, or reuse what equal operands gave: experts look up the same rows."""
            key = (call.domain, call.op, call.opset, call.used, form, *map(id, operands))
            if key not in self.results:
                lowering = LOWERINGS.get((call.domain, call.op), reference)
                self.results[key] = lowering(self.builder, call, operands), operands
            call.ignore(*call.attrs)
            return self.results[key][0]

        return rows.lower(self.builder, call, inputs, run)

    def _defined(
        self, call: Call, inputs: Sequence[Value | None], key: tuple[Any, ...]
    ) -> Sequence[Value | Poison | None]:
        """An operator without a lowering of its own, by the standard's definition."""
        protos = call.extra["protos"]
        function = definition(call.op, call.opset, protos, inputs)
        if function is None:
            raise Unsupported("on operands of these types")
        survey, self.survey = self.survey, None  # the nodes inside are not the model's
        out = self._function(function, inputs, call.name, protos, local=False)
        self.survey = survey
        if not any(isinstance(v, Poison) for v in out):
            self.results[key] = (out, inputs)
        return out

    def _name(self, out: Sequence[Value | None], names: Sequence[str], node: str) -> None:
        """Final names: results carry those of the ONNX values, the rest get unique ones."""
        b = self.builder
        final: dict[int, str] = {}
        for result, name in zip(out, names, strict=False):
            value = result.full if isinstance(result, rows.Picked) else result
            if value is not None and name:
                final.setdefault(id(value), name)
        for value in b.made:
            mine = id(value) in final
            value.name = b.unique(final[id(value)] if mine else value.name)
            if value.node is not None:
                single = mine and len(names) == 1
                value.node.name = node if single else value.node.name
        b.made = []

    def _constant(self, protos: Sequence[Any], name: str) -> Value:
        attr = protos[0]
        if attr.name == "value":
            return self.tensor(attr.t, name)
        value = _attribute(attr)
        dtype = np.float32 if "float" in attr.name else np.int64
        return self.builder.constant(np.asarray(value, dtype), name)

    def _control(self, node: Any, env: Env, scope: Scope, inputs: Sequence[Any]) -> None:
        """A node with subgraphs, or one on sequences."""
        op = node.op_type
        outputs: Sequence[Any] = [POISON] * len(node.output)
        protos = [p for p in (_resolved(a, scope.attrs) for a in node.attribute) if p is not None]
        given = {p.name: p.g if p.HasField("g") else _attribute(p) for p in protos}
        b = self.builder
        try:
            if any(isinstance(v, Poison) for v in inputs):
                pass
            elif op in CONTROL:
                outputs = CONTROL[op](self, node, given, inputs, scope)
            else:
                b.scope = b.source = scope.prefix + (node.name or node.output[0])
                b.made = []
                if op != "Identity" and op not in SEQUENCES:
                    raise Unsupported("on a sequence of tensors")
                outputs = [inputs[0] if op == "Identity" else SEQUENCES[op](b, given, inputs)]
            b.settle()
        except Unsupported as error:
            self.failures[op, str(error)] += 1
        except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
            raise self._misfit(scope.prefix + (node.name or op), op, error) from error
        for name, value in zip(node.output, outputs, strict=False):
            if name:
                env[name] = value

    def _function_of(self, node: Any) -> Any:
        """The function of the model that a node calls, by its overload where there are several."""
        overload = getattr(node, "overload", "")
        key = domain_of(node), node.op_type
        return self.model.overloads.get((*key, overload)) or self.model.functions.get(key)

    def _function(
        self,
        function: Any,
        inputs: Sequence[Value | None],
        name: str,
        protos: Sequence[Any],
        local: bool = True,
    ) -> Sequence[Value | Poison | None]:
        """Interpret a function that is local to the model, or the standard's."""
        env: Env = {n: None for n in function.input}
        env.update(zip(function.input, inputs, strict=False))
        given = {p.name: p for p in getattr(function, "attribute_proto", ())}
        given.update({p.name: p for p in protos})
        opsets = {domain_of(o): int(o.version) for o in function.opset_import}
        if local:  # ONNX Runtime puts the body into the model's graph as it is
            opsets |= self.model.opsets
        wanted = list(function.output)
        self.nodes(list(function.node), env, wanted, opsets, f"{name}/", given)
        return [self.look(env, n) for n in wanted]

    def unknown(self, wanted: Sequence[str]) -> None:
        """Raise for operators that no binding makes known."""
        nodes = list(self.model.proto.graph.node)
        for i, _ in needed(nodes, wanted, {}):
            if domain_of(nodes[i]):
                self._note_unknown(nodes[i])
        self.check()

    def check_names(self) -> None:
        """Raise for names that nodes read and neither a node, an input nor a weight defines."""
        if not self.nameless:
            return
        circle = cycle(self.model.proto)
        if circle:
            raise InputError(
                f"The graph of '{self.model.path.name}' has a cycle through {circle}; export the "
                "model again."
            )
        name = next(iter(self.nameless))
        more = len(self.nameless) - 1
        others = f" (and {more} more)" if more else ""
        raise InputError(
            f"Nodes of '{self.model.path.name}' read '{name}'{others}, which no node makes and for "
            "which there is neither an initializer nor a value_info with fixed dimensions; export "
            "the model with its weights."
        )

    # -- errors -------------------------------------------------------------------------------

    def check(self, remedy: str = "") -> None:
        """Raise one InputError that lists everything that could not be lowered."""
        if not self.failures:
            return
        unknown = {op: n for (op, why), n in self.failures.items() if not why}
        limited = {(op, why): n for (op, why), n in self.failures.items() if why}
        parts = []
        if unknown:
            listed = ", ".join(
                f"'{op}' ({_nodes_text(n)}{_unknown(op)})" for op, n in sorted(unknown.items())
            )
            parts.append(f"operators that are not supported: {listed}")
        if limited:
            listed = ", ".join(
                f"'{op}' {why} ({_nodes_text(n)})" for (op, why), n in sorted(limited.items())
            )
            parts.append(f"operators in a form that is not supported: {listed}")
        text = "; ".join(parts)
        remedy = remedy or "export it without them ('meshc ops' lists what is supported)"
        raise InputError(f"Model '{self.model.path.name}' has {text}; {remedy}.")


def _unknown(op: str) -> str:
    return "" if ":" in op or exists(op) else ", unknown to the ONNX standard"


def _nodes_text(n: int) -> str:
    return f"{n} node" + ("s" if n != 1 else "")


def _label(domain: str, op: str) -> str:
    return f"{domain}:{op}" if domain else op


def _resolved(attr: Any, given: dict[str, Any]) -> Any:
    """An attribute with a function's reference replaced by what the caller gave."""
    if not attr.ref_attr_name:
        return attr
    source = given.get(attr.ref_attr_name)
    if source is None:
        return None
    copy = type(attr)()
    copy.CopyFrom(source)
    copy.name = attr.name
    return copy


def _attribute(attr: Any) -> Any:
    from onnx import helper, numpy_helper

    value = helper.get_attribute_value(attr)
    if attr.HasField("t"):
        if attr.t.data_type in DTYPES and NUMPY[DTYPES[attr.t.data_type]] in NAMES:
            return np.asarray(numpy_helper.to_array(attr.t)).astype(NUMPY[DTYPES[attr.t.data_type]])
        return None
    return value
