"""What the compiler made of the loops: counts of instructions in Numba's machine code."""

import gc
import re

# An operation, packed (p) or scalar (s), single (s) or double (d): vfmadd231ps, vaddsd. Moves are
# not counted.
_X86 = re.compile(
    r"^\s+v((?:fn?m(?:add|sub|addsub|subadd)\d+)|add|sub|mul|div|sqrt|max|min)([ps])[sd]\s+(.*)$"
)
_ARM = re.compile(
    r"^\s+(fn?m(?:la|ls|add|sub)|f(?:add|sub|mul|div|sqrt|max|min)(?:nm)?)(?:\.[24][sd])?\s+(.*)$"
)
_STREAM = re.compile(r"^\s+(?:v?movnt(?:p[sd]|dq|i)|stnp)\b")


def _x86(line):
    """(register or "scalar", is it a fused multiply-add) of one line, or None."""
    if match := _X86.match(line):
        name, packed, operands = match.groups()
        registers = re.findall(r"[xyz]mm", operands)
        return (registers[0] if packed == "p" and registers else "scalar"), name.startswith("f")
    return None


def _arm(line):
    if match := _ARM.match(line):
        packed = re.search(r"\bv\d+(?:\.[24][sd])?\b|\.[24][sd]\b", line)
        return ("v" if packed else "scalar"), re.match(r"fn?m(la|ls|add|sub)", match[1]) is not None
    return None


def count(assembly):
    """Floating-point operations by register, fused multiply-adds and non-temporal stores in a text
    of assembly.

    Returned as {"zmm": ..., "ymm": ..., "xmm": ..., "v": ..., "scalar": ..., "fma": ...,
    "streaming": ...}, without the zeros. zmm, ymm and xmm are 64, 32 and 16 bytes wide; v is a
    16-byte register of ARM.
    """
    found = dict.fromkeys(("zmm", "ymm", "xmm", "v", "scalar", "fma", "streaming"), 0)
    for line in assembly.splitlines():
        found["streaming"] += bool(_STREAM.match(line))
        if operation := _x86(line) or _arm(line):
            register, fused = operation
            found[register] += 1
            found["fma"] += fused
    return {name: n for name, n in found.items() if n}


def kernels(module):
    """Every function of a module, by name, that Numba has compiled, wherever it is kept."""
    from numba.core.dispatcher import Dispatcher

    # type(), because isinstance() asks the object, and some of all those objects have odd answers.
    found = [d for d in gc.get_objects() if issubclass(type(d), Dispatcher)]
    mine = [d for d in found if d.py_func.__module__ == module]
    return sorted(mine, key=lambda d: d.py_func.__qualname__)


def freedoms(kernel):
    """What the compiler was allowed: to add in any order, to take it that no arrays overlap."""
    options = kernel.targetoptions.get("fastmath") or ()
    return {
        "any_order": options is True or "reassoc" in options,
        "no_alias": kernel._compiler.pipeline_class.__name__ == "NoAlias",
    }


def report(module):
    """One record for each kernel of a module and each dtype of its first array.

    The machine code of a kernel holds that of the kernels it calls. Kernels that Numba took from
    its cache on disk have none to show: point ``NUMBA_CACHE_DIR`` to an empty folder.
    """
    records = []
    for kernel in kernels(module):
        for signature, assembly in kernel.inspect_asm().items():
            arrays = [str(t.dtype) for t in signature if hasattr(t, "dtype") and hasattr(t, "ndim")]
            record = {"kernel": kernel.py_func.__qualname__, "module": module}
            record["arguments"] = " ".join(dict.fromkeys(arrays))
            record["parallel"] = bool(kernel.targetoptions.get("parallel"))
            records.append(record | freedoms(kernel) | count(assembly))
    return records
