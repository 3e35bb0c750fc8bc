"""What the caller says about the target."""

from dataclasses import dataclass
from math import prod

from lnlib import validation

from .cases import MANY_ROWS, WIDTHS

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

#: What a quick run leaves out.
QUICK = "rows far from zero, very wide rows and thousands of rows (quick)"


@dataclass(frozen=True)
class Settings:
    """What is tried, and what the target lacks.

    * ``kind``: "layer_norm" or "rms_norm".
    * ``framework``: "numpy", "torch", "jax", "cupy" or "numba" (its device arrays): whose arrays it
      takes.
    * ``dtypes``: names of the dtypes of x, gamma, beta and dy.
    * ``quick``: fewer widths, rows and repetitions, nothing far from zero.
    * ``eps``: None if the target takes eps as its last argument, else the number that is fixed in
      it.
    * ``beta``: whether there is a beta. RMS norm has none.
    * ``multiple_of``, ``most_features``, ``most_rows``: which D, and how many rows, the target
      takes.
    * ``contiguous``: whether the target takes only arrays whose numbers lie one behind the other,
      in order. The dy of PyTorch's autograd is in any order all the same: nobody makes it.
    * ``accumulate``: the dtype of its arithmetic and sums; by default float32 for float32 and half
      precision.
    * ``double_backward``: whether its gradient can be differentiated again (PyTorch, JAX).
    * ``nested``: whether its second derivative can be differentiated, too.
    * ``forward_mode``: whether it has a JVP, and this a gradient (PyTorch, JAX).
    * ``device``: where PyTorch's tensors are put, as PyTorch writes it ("cuda").

    Of the methods, arguments are not checked: a run asks them about its own cases.
    """

    kind: str = "layer_norm"
    framework: str = "numpy"
    dtypes: tuple[str, ...] = ("float32",)
    quick: bool = False
    eps: float | None = None
    beta: bool = True
    multiple_of: int = 1
    most_features: int | None = None
    most_rows: int | None = None
    contiguous: bool = False
    accumulate: str | None = None
    double_backward: bool = False
    nested: bool = False
    forward_mode: bool = False
    device: str | None = None

    def __post_init__(self):
        validation.require_choice("kind", self.kind, KINDS)
        validation.require_choice("framework", self.framework, FRAMEWORKS)
        object.__setattr__(self, "dtypes", validation.require_several("dtypes", self.dtypes))
        if not self.dtypes:  # nothing would be tried, and so everything hold
            raise ValueError(f"dtypes: found none, expected one or more of {', '.join(DTYPES)}")
        for dtype in self.dtypes:
            validation.require_choice("dtypes", dtype, DTYPES)
        if self.accumulate is not None:
            validation.require_choice("accumulate", self.accumulate, DTYPES)
        for name in ("quick", "beta", "contiguous", "double_backward", "nested", "forward_mode"):
            validation.require_bool(name, getattr(self, name))
        if self.eps is not None:
            validation.require_eps(self.eps)
        validation.require_count("multiple_of", self.multiple_of)
        for name in ("most_features", "most_rows"):
            if getattr(self, name) is not None:
                validation.require_count(
                    name, getattr(self, name), self.multiple_of if name == "most_features" else 1
                )
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
        """Whether dy is handed over by PyTorch, as what was done to y leaves it, and not by whoever
        calls backward.
        """
        return self.framework == "torch"

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of what the target gives."""
        return ("y", "dx", "dgamma", "dbeta") if self.beta else ("y", "dx", "dgamma")

    def accumulated_in(self, dtype: str) -> str:
        return self.accumulate or str(validation.COMPUTE_DTYPE[dtype])

    def width(self, D: int) -> int:
        """The width that the target takes in the place of D: the next multiple, or the last that it
        takes.
        """
        wide = -(-D // self.multiple_of) * self.multiple_of
        return (
            min(wide, self.most_features // self.multiple_of * self.multiple_of)
            if self.most_features
            else wide
        )

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether the target takes x of this shape."""
        rows, D = prod(shape[:-1]), shape[-1]
        return (
            D % self.multiple_of == 0
            and (self.most_features or D) >= D
            and rows <= (self.most_rows or rows)
        )

    def not_tested(self) -> list[str]:
        """What cannot be tested of such a target, in words."""
        missing = [dtype for dtype in DTYPES if dtype not in self.dtypes]
        halves = [dtype for dtype in self.dtypes if dtype in ("float16", "bfloat16")]
        differentiated = (
            self.framework not in ("torch", "jax") or self.double_backward and self.nested
        )
        return [
            words
            for lacks, words in (
                (self.eps is not None, f"any eps but {self.eps or 0:g}"),
                (not self.beta and not self.rms, "beta and dbeta"),
                (self.multiple_of > 1, f"D that is no multiple of {self.multiple_of}"),
                (
                    self.most_features or not self.quick,
                    f"D above {self.most_features or WIDTHS[-1]}",
                ),
                (self.most_rows or not self.quick, f"more than {self.most_rows or MANY_ROWS} rows"),
                (self.contiguous, "arrays with strides" + ", but for dy" * self.autograd),
                (
                    not differentiated,
                    (
                        "a third derivative"
                        if self.double_backward
                        else "a second and a third derivative"
                    ),
                ),
                (
                    self.framework in ("torch", "jax") and not self.forward_mode,
                    "a JVP and its gradient",
                ),
                (missing, " and ".join(missing)),
                (self.quick, QUICK),
                (halves and not self.quick, f"rows far from zero in {' and '.join(halves)}"),
            )
            if lacks
        ]
