"""What the caller says about the target."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any

from lnlib import validation

KINDS = "layer_norm", "rms_norm"
#: Framework -> its adapter. A new one is a file with a class like these, and a row here.
FRAMEWORKS = {
    "numpy": "adapters.NumPyPair",
    "torch": "torch_adapter.TorchFunction",
    "jax": "jax_adapter.JaxFunction",
    "cupy": "device_adapter.DevicePair",
    "numba": "device_adapter.DevicePair",
}
DTYPES = "float64", "float32", "float16", "bfloat16"


def _option(default: Any, says: str, check: Callable, **of_command: Any) -> Any:
    """A field: what it says, ``check(name, value)``, and how the command takes it."""
    return field(default=default, metadata={"help": says, "check": check, "command": of_command})


def _choice(default: str | None, says: str, choices) -> Any:
    def check(name, value):
        return validation.require_choice(name, value, choices)

    return _option(default, says, check, choices=list(choices))


def _flag(default: bool, says: str) -> Any:
    return _option(default, says, validation.require_bool, action="store_true")


def _count(default: int | None, says: str) -> Any:
    return _option(default, says, validation.require_count, type=int)


def _some_dtypes(name, value):
    value = validation.require_several(name, value)
    if not value:  # nothing would be tried, and so everything hold
        raise ValueError(f"{name}: found none, expected one or more of {', '.join(DTYPES)}")
    return tuple(validation.require_choice(name, dtype, DTYPES) for dtype in value)


@dataclass(frozen=True)
class Settings:
    """What is tried, and what the target lacks.

    Of the methods, arguments are not checked: a run asks them about its own cases.
    """

    kind: str = _choice("layer_norm", "what the target computes", KINDS)
    framework: str = _choice(
        "numpy", "whose arrays it takes; numba are Numba's device arrays", FRAMEWORKS
    )
    dtypes: tuple[str, ...] = _option(
        ("float32",), "dtypes of x, gamma, beta and dy", _some_dtypes, nargs="+", choices=DTYPES
    )
    quick: bool = _flag(False, "fewer widths, rows and repetitions, and no rows far from zero")
    eps: float | None = _option(
        None,
        "the eps that is fixed in the target; without it the target takes eps as its last argument",
        lambda _, value: validation.require_eps(value),
        type=float,
    )
    beta: bool = _flag(True, "whether there is a beta; RMS norm has none")
    multiple_of: int = _count(1, "the target takes multiples of this as D")
    most_features: int | None = _count(None, "the largest D that the target takes")
    most_rows: int | None = _count(None, "the most rows that the target takes")
    contiguous: bool = _flag(
        False,
        "the target takes no arrays with strides; the dy of PyTorch's autograd may have some all"
        " the same, because no caller makes it",
    )
    accumulate: str | None = _choice(
        None,
        "the dtype of the target's arithmetic and sums, by default float32 for float32 and half"
        " precision",
        DTYPES,
    )
    double_backward: bool = _flag(
        False, "the target's gradient can be differentiated again (PyTorch, JAX)"
    )
    nested: bool = _flag(False, "its second derivative can be differentiated as well")
    forward_mode: bool = _flag(
        False, "the target has a JVP, and the JVP has a gradient (PyTorch, JAX)"
    )
    device: str | None = _option(
        None,
        'where PyTorch\'s tensors are put, as PyTorch writes it ("cuda")',
        lambda _, name: name,
    )

    def __post_init__(self):
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None or one.default is not None:
                object.__setattr__(self, one.name, one.metadata["check"](one.name, value))
        if self.most_features is not None:
            validation.require_count("most_features", self.most_features, self.multiple_of)
        if self.device is not None and self.framework != "torch":
            raise ValueError(
                f"device: found {self.device!r}, expected None: framework {self.framework} puts"
                " arrays where its own current device is"
            )
        if self.rms:
            object.__setattr__(self, "beta", False)

    @property
    def rms(self) -> bool:
        return self.kind == "rms_norm"

    @property
    def derivatives(self) -> tuple[str, ...]:
        """The properties of derivatives of derivatives that are asked for."""
        asked = {
            "the second derivative": self.double_backward,
            "nested derivatives": self.nested,
            "the gradient of a JVP": self.forward_mode,
        }
        return tuple(name for name, wanted in asked.items() if wanted)

    @property
    def autograd(self) -> bool:
        """Whether dy is as autograd leaves it, and not as a caller makes it."""
        return self.framework == "torch"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arrays that the target takes, and dy."""
        return ("x", "gamma", "beta", "dy") if self.beta else ("x", "gamma", "dy")

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of what the target gives."""
        return ("y", *(f"d{name}" for name in self.arguments[:-1]))

    def accumulated_in(self, dtype: str) -> str:
        return self.accumulate or str(validation.COMPUTE_DTYPE[dtype])

    def width(self, D: int) -> int:
        """The width in the place of D: the next multiple, or the last that the target takes."""
        wide = -(-D // self.multiple_of)
        most = self.most_features // self.multiple_of if self.most_features else wide
        return min(wide, most) * self.multiple_of

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether the target takes x of this shape."""
        rows, D = prod(shape[:-1]), shape[-1]
        return (
            D % self.multiple_of == 0
            and (self.most_features or D) >= D
            and rows <= (self.most_rows or rows)
        )


#: Every field with what it says, which the command's help shows as well.
Settings.__doc__ = f"{Settings.__doc__}\n" + "\n".join(
    f"    * ``{one.name}``: {one.metadata['help']}." for one in fields(Settings)
)
