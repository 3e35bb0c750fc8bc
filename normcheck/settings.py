"""What the caller says about the target."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import lcm, prod
from typing import Any

from lnlib import validation
from lnlib.norms import NORMS, Shapes

KINDS = tuple(NORMS)
#: Framework -> its adapter. A new one is a file with a class like these, and a row here.
FRAMEWORKS = {
    "numpy": "adapters.NumPyPair",
    "torch": "torch_adapter.TorchFunction",
    "jax": "jax_adapter.JaxFunction",
}
DTYPES = "float64", "float32", "float16", "bfloat16"

#: The most rows: a grid of CUDA has at most 65535 blocks along y and z.
MANY_ROWS = 65537


def _option(default: Any, says: str, **of_command: Any) -> Any:
    """A field: what the help says of it, and how the command takes it, so what a right value is."""
    if isinstance(default, bool):
        of_command["action"] = argparse.BooleanOptionalAction if default else "store_true"
    return field(default=default, metadata={**of_command, "help": says})


def _checked(name: str, value: Any, of_command: Mapping) -> Any:
    """A right value for such an option; otherwise an error that names it."""
    if "nargs" in of_command:
        value, whole = validation.require_several(name, value), of_command.get("type") is int
        if not value:  # nothing would be tried, and so everything hold
            some = "integers" if whole else f"of {', '.join(DTYPES)}"
            raise ValueError(f"{name}: found none, expected one or more {some}")
        if whole:
            return tuple(validation.require_count(name, n) for n in value)
        return tuple(validation.require_choice(name, one, DTYPES) for one in value)
    if "choices" in of_command:
        return validation.require_choice(name, value, of_command["choices"])
    if "action" in of_command:
        return validation.require_bool(name, value)
    if of_command.get("type") is int:
        return validation.require_count(name, value)
    real = of_command.get("type") is float
    return validation.require_number(name, value, least=0) if real else value


@dataclass(frozen=True)
class Settings:
    """What is tried, and what the target lacks."""

    kind: str = _option("layer_norm", "what the target computes", choices=KINDS)
    framework: str = _option("numpy", "whose arrays the target takes", choices=list(FRAMEWORKS))
    dtypes: tuple[str, ...] = _option(
        ("float32",), "dtypes of x, gamma, beta and dy", nargs="+", choices=DTYPES
    )
    quick: bool = _option(False, "fewer widths and rows, and none far from zero")
    eps: float | None = _option(None, "the eps fixed in it; else its last argument", type=float)
    gamma_dtype: str | None = _option(None, "that of gamma and beta, if not x's", choices=DTYPES)
    dy_dtype: str | None = _option(None, "that of dy, if not x's", choices=DTYPES)
    y_dtype: str | None = _option(None, "that of y, if not x's", choices=DTYPES)
    gamma: bool = _option(True, "whether there is a gamma")
    gamma_offset: float = _option(0.0, "what is added to gamma, 1 as in Gemma", type=float)
    beta: bool = _option(True, "whether there is a beta; RMS norm has none")
    groups: int | None = _option(None, "those of a group norm, whose x is (N, C, L)", type=int)
    axis: int | None = _option(None, "the axis of a row: 1 for channels first", type=int)
    normalized_shape: tuple[int, ...] | None = _option(
        None, "the shape of gamma, if x's last axes are one row: 4 8", type=int, nargs="+"
    )
    residual: bool = _option(False, "it takes x and r, and returns the norm of h = x + r, and h")
    round_twice: bool | None = _option(
        None,
        "whether y is gamma times a rounded xhat (16 bits)",
        action=argparse.BooleanOptionalAction,
    )
    batch_invariant: bool = _option(False, "a row must have the same bits alone and among others")
    seed: int | None = _option(None, "other random numbers, the same for one seed", type=int)
    multiple_of: int = _option(1, "the target takes multiples of this as D", type=int)
    most_features: int | None = _option(None, "the largest D that it takes", type=int)
    most_rows: int | None = _option(None, "the most rows that it takes", type=int)
    contiguous: bool = _option(False, "it takes no strides, but those of autograd's dy")
    accumulate: str | None = _option(None, "its sums; else float32 or more", choices=DTYPES)
    double_backward: bool = _option(False, "its gradient has a gradient (PyTorch, JAX)")
    forward_mode: bool = _option(False, "it has a JVP, and this a gradient")
    gradcheck: bool = _option(False, "what PyTorch's gradcheck says of it is told as well")
    out: bool = _option(False, "it writes into arrays for its results, which come last (NumPy)")
    device: str | None = _option(None, 'where PyTorch puts its tensors, for example "cuda"')

    def __post_init__(self):
        if isinstance(self.dtypes, Mapping):  # argument -> dtype
            if not {"x"} <= self.dtypes.keys() <= {"x", "gamma", "dy", "y"}:
                found = ", ".join(map(str, self.dtypes))
                raise ValueError(f"dtypes: found those of {found}, expected x, and gamma, dy, y")
            for name in self.dtypes.keys() - {"x"}:
                object.__setattr__(self, f"{name}_dtype", self.dtypes[name])
            object.__setattr__(self, "dtypes", (self.dtypes["x"],))
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None or one.default is not None:
                object.__setattr__(self, one.name, _checked(one.name, value, one.metadata))
        if self.kind == "group_norm":
            object.__setattr__(self, "groups", self.groups or 1)
            object.__setattr__(self, "multiple_of", lcm(self.multiple_of, self.groups))
            if self.axis or self.normalized_shape:
                raise ValueError("axis, normalized_shape: found one, expected none in a group norm")
        elif self.groups:
            raise ValueError(f"groups: found {self.groups}, expected None with kind {self.kind}")
        if self.normalized_shape:  # no other width
            D = prod(self.normalized_shape)
            object.__setattr__(self, "multiple_of", D)
            object.__setattr__(self, "most_features", D)
        if self.most_features is not None:
            validation.require_count("most_features", self.most_features, self.multiple_of)
        for name, framework in ("device", "torch"), ("gradcheck", "torch"), ("out", "numpy"):
            found, default = getattr(self, name), getattr(type(self), name)
            if found != default and self.framework != framework:
                expected = f"expected {default} with framework {self.framework}"
                raise ValueError(f"{name}: found {found!r}, {expected}")
        lacks = self.residual or self.groups or not self.gamma
        if (self.double_backward or self.forward_mode) and lacks:
            raise ValueError(
                "double_backward, forward_mode: found one, expected gamma, no residual, no groups"
            )
        if self.rms:
            object.__setattr__(self, "beta", False)

    @property
    def rms(self) -> bool:
        return self.kind == "rms_norm"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays that the target takes."""
        there = {"x": True, "r": self.residual, "gamma": self.gamma, "beta": self.beta}
        return tuple(name for name in there if there[name])

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what it returns."""
        return ("y", "h") if self.residual else ("y",)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arrays that it takes, and of the gradients of what it returns."""
        return (*self.inputs, *(f"d{name}" for name in self.outputs))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of what it gives; a pair of functions has one gradient of x and r."""
        one = {"r"} if self.framework == "numpy" else {}
        return (*self.outputs, *(f"d{name}" for name in self.inputs if name not in one))

    def dtype_of(self, name: str, dtype: str) -> str:
        """The dtype of the array ``name`` where x has ``dtype``."""
        name = {"beta": "gamma", "dgamma": "gamma", "dbeta": "gamma", "dh": "dy"}.get(name, name)
        return getattr(self, f"{name}_dtype", None) or dtype

    def accumulated_in(self, dtype: str) -> str:
        return self.accumulate or str(validation.COMPUTE_DTYPE[dtype])

    def width(self, D: int) -> int:
        """The width in the place of D: the next multiple, or the last that the target takes."""
        wide = -(-D // self.multiple_of)
        most = self.most_features // self.multiple_of if self.most_features else wide
        return min(wide, most) * self.multiple_of

    def shapes(self, shape: tuple[int, ...]) -> Shapes:
        """How x of this shape is seen; a row of a group norm is one group of an example."""
        return NORMS[self.kind].shapes(shape, self.groups or 1)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in the place of (..., D), of a width that is taken; in groups, (N, C, D)."""
        *lead, D = shape
        if not self.groups:
            return *lead, self.width(D)
        N, C = prod(lead), self.width((3 - D % 3) * self.groups)  # up to three in a group
        return N if N < MANY_ROWS else -(-N // C), C, D  # the most rows are those of all channels

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether the target takes x of this shape."""
        rows, D = shape[:2] if self.groups else (prod(shape[:-1]), shape[-1])
        return (
            D % self.multiple_of == 0
            and (self.most_features or D) >= D
            and rows <= (self.most_rows or rows)
            and len(shape) > (self.axis or 0)
        )

    def own(self, name: str) -> tuple[str, str]:
        """Templates of what the target takes for an array ``{a}`` of a case, whose rows are along
        the last axis, and the other way round.
        """
        if self.axis and "gamma" not in name and "beta" not in name:
            to = f"np.ascontiguousarray(np.moveaxis({{a}}, -1, {self.axis}))"
            return to, f"np.moveaxis({{a}}, {self.axis}, -1)"
        if shape := self.normalized_shape:
            ends, back = ", ".join(map(str, shape)), f"*{{a}}.shape[:-{len(shape)}], {prod(shape)}"
            return f"{{a}}.reshape(*{{a}}.shape[:-1], {ends})", f"{{a}}.reshape({back})"
        return "{a}", "{a}"


#: Every field with what it says, which the command's help shows as well.
Settings.__doc__ = f"{Settings.__doc__}\n\n" + "\n".join(
    f"    * ``{one.name}``: {one.metadata['help']}." for one in fields(Settings)
)
