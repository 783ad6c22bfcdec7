"""Every setting of torch_jax: its default, its environment variable, and its effect.

Read a setting with :func:`get`; change it with :func:`set`, for a while with :func:`temporarily`,
or before Python starts with the environment variable ``TORCH_JAX_<NAME>``.

>>> from torch_jax import config
>>> config.get("matmul_precision")
'torch'
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """The default, the help and the choices of one setting."""

    default: Any  # the value where no other is set; its type is the type of the setting
    help: str  # a sentence or more for the page of settings
    choices: tuple[Any, ...] = ()  # the values that the setting may take; empty: any of that type
    is_compiled: bool = False  # programs depend on the value, so that a change drops them

    def parse(self, text: str) -> Any:
        """Turn the text of an environment variable into a value of the default's type.

        An empty text switches a switch off, and means the default for every other setting.
        """
        kind: Callable[[str], Any] = type(self.default)
        if kind is bool:
            return _SWITCHES[text.lower()]
        return kind(text) if text else self.default


_SWITCHES = dict.fromkeys(("1", "true", "on", "yes"), True)
_SWITCHES |= dict.fromkeys(("", "0", "false", "off", "no"), False)


SETTINGS: dict[str, Setting] = {
    "cpu_fallback": Setting(
        "warn",
        "What an operator without a JAX lowering does: run on the CPU with one warning per "
        "operator, raise OperatorNotFound, or run on the CPU without a word.",
        choices=("warn", "error", "silent"),
    ),
    "check_indices": Setting(
        "auto",
        "Check index tensors against the bounds and raise IndexError as PyTorch on CPU does. "
        "'always' waits for the indices at each call, as 'auto' does where JAX runs on the CPU; on "
        "accelerators 'auto' raises where Python waits for the device next. Until then, and with "
        "'never', an index out of range reads NaN (or the least integer) and writes nothing. "
        "torch._assert_async follows this setting, too. Factorizations are always waited for.",
        choices=("auto", "always", "never"),
        is_compiled=True,
    ),
    "enabled": Setting(
        False,
        "Enable the environment (torch_jax.default_env) on all threads at `import torch`; read "
        "only there, so that it is the environment variable which counts.",
    ),
    "redirect_default": Setting(
        True,
        "In an enabled environment (torch_jax.default_env), factory functions that are given no "
        "device make tensors on device 'jax'.",
        is_compiled=True,
    ),
    "redirect_cuda": Setting(
        False,
        "In an enabled environment, device 'cuda' means 'jax', and torch.cuda's functions answer "
        "for it.",
        is_compiled=True,
    ),
    "matmul_precision": Setting(
        "torch",
        "Precision of float32 matrix products: 'highest' is true float32, 'high' TF32 or as exact, "
        "'medium' the platform's fastest; 'torch' follows PyTorch's switches. torch.backends.jax "
        "sets it too, and a block of torch_jax.matmul_precision comes before it.",
        choices=("torch", "highest", "high", "medium"),
        is_compiled=True,
    ),
    "conv_precision": Setting(
        "torch",
        "Precision of float32 convolutions, in the same words.",
        choices=("torch", "highest", "high", "medium"),
        is_compiled=True,
    ),
    "float64": Setting(
        "exact",
        "What float64 and complex128 do on accelerators, where they are slow or emulated: run as "
        "what they are, run with one warning per operator, or raise TypeError. They are never "
        "narrowed, and int64 is int64 everywhere. JAX on the CPU takes no notice of this.",
        choices=("exact", "warn", "error"),
        is_compiled=True,
    ),
    "log": Setting(
        "warning",
        "Level of the logger 'torch_jax'. 'info' reports every program, and why it was needed, "
        "and every operator that is compiled, with the line that called it; 'debug' also reports "
        "overrides as they come and go.",
        choices=("warning", "info", "debug"),
    ),
    "mode": Setting(
        "eager",
        "How operators run: each at once; or written down and run together as one program at "
        "torch_jax.sync(), or where a value is looked at; or in groups that cut themselves. The "
        "environment variable holds for all "
        "threads; set while a program runs, it holds for the thread that sets it, and for those "
        "that use the device for the first time afterwards.",
        choices=("eager", "lazy", "fused"),
    ),
    "keep_host_memory": Setting(
        True,
        "Have glibc keep freed memory for the whole process, from the first use of the device on: "
        "on the CPU large training steps take up to a third less time. What no later call takes "
        "goes back when the heap grows. As an environment variable, or before the first use.",
    ),
    "lazy_operators": Setting(
        20000,
        "After how many operators a recording is run without a call of torch_jax.sync(), with "
        "one warning.",
    ),
    "lazy_programs": Setting(
        256,
        "How many programs of recorded graphs are kept in the process; those go first that have "
        "not been run for the longest time.",
    ),
    "lazy_states": Setting(
        100000,
        "How many operators of recorded sequences are remembered, those that sequences begin with "
        "in common counted once. Beyond that, half of them is forgotten, and with them the "
        "programs that were not run lately. An operator takes about 1 KB.",
    ),
    "compiled_from_run": Setting(
        3,
        "From which run on a recorded graph runs as one program, which XLA compiles during the run "
        "before. Until then its operators run one by one: by PyTorch's kernels where JAX computes "
        "on the CPU, else in fused mode only. From 3 on, operators with operands of new shapes run "
        "eagerly on the CPU, and are recorded when they come again. So first losses come at once, "
        "and a graph that runs once is never compiled. 1: a graph is compiled when it is first "
        "run, as always on accelerators and for jit(pure=True).",
    ),
    "jit_check_every": Setting(
        1000,
        "How often a function under torch_jax.jit(pure=True) runs its Python all the same, to find "
        "out whether it still does what it did: at the 2nd, 4th, 8th call, and then after so many; "
        "0: never.",
    ),
    "jit_cache_size": Setting(
        16,
        "How many programs a function under torch_jax.jit(pure=True) keeps, one for each kind of "
        "call; the oldest goes first.",
    ),
    "progress": Setting(True, "Say on a terminal that XLA has been compiling for some seconds."),
    "cache": Setting(
        True,
        "Keep on disk what XLA compiles, for later processes. JAX's own settings come first: where "
        "jax_compilation_cache_dir is set, nothing is changed.",
    ),
    "cache_dir": Setting(
        "auto",
        "Directory of the files kept on disk; 'auto' is torch_jax in $XDG_CACHE_HOME or ~/.cache. "
        "A user who can write to it can run code in the processes that read it, so a directory "
        "that another user owns or may write to is warned of, and not used.",
    ),
    "cache_megabytes": Setting(
        4096, "How much is kept on disk, in MiB; the least recently used goes first."
    ),
    "cache_size": Setting(
        4096,
        "How many compiled eager operators are kept, over all operators (an entry is one operator "
        "with one set of shapes, dtypes and static arguments); those go first that have not been "
        "called for the longest time. Each takes up to 1.4 MB, and on the CPU memory maps: where "
        "the process has taken half of those that Linux gives it (65,530), entries go earlier.",
    ),
    "target": Setting(
        "here",
        "What programs are compiled for, such as 'tpu-v5e-4x4' or 'gpu-h200': chips that need not "
        "be here, whose programs can be looked at and not be run. Set by torch_jax.compile_for and "
        "by python -m torch_jax check. 'here': the platform that JAX runs on.",
        is_compiled=True,
    ),
    "eager_on_cpu": Setting(
        "torch",
        "What runs eager operators where JAX computes on the CPU: PyTorch's own CPU kernels, on "
        "the very memory of JAX's arrays, or XLA, which compiles each as on an accelerator. What "
        "jit, lazy mode, torch.compile and exports make are programs of XLA either way; so are "
        "random operators, and tensors on a mesh.",
        choices=("torch", "xla"),
    ),
}

_values: dict[str, Any] = {}
_version = 0
listeners: list[Callable[[], None]] = []  # called by :func:`forget`
setters: dict[str, Callable[[Any], None]] = {}  # called with the new value of one setting


def get(name: str) -> Any:
    """Return the value of the setting ``name``; ``KeyError`` where there is none."""
    if name not in _values:
        _values[name] = from_environment(name)
    return _values[name]


def from_environment(name: str) -> Any:
    """Return the value of a setting's environment variable, or the setting's default.

    Raises:
      ValueError: the text of the variable is no value of the setting.
    """
    variable, setting = f"TORCH_JAX_{name.upper()}", SETTINGS[name]
    text = os.environ.get(variable)
    try:
        value = setting.default if text is None else setting.parse(text)
    except (KeyError, ValueError) as error:
        kind = type(setting.default).__name__
        raise ValueError(f"{variable} is {text!r}, which is no {kind}") from error
    return _checked(name, value)


def set(name: str, value: Any) -> None:
    """Change the setting ``name``; ``ValueError`` where ``value`` is not one of its choices.

    Programs are dropped only where they depend on the setting (:attr:`Setting.is_compiled`).
    """
    _values[name] = _checked(name, value)
    if name in setters:
        setters[name](value)
    if SETTINGS[name].is_compiled:
        forget()


def forget() -> None:
    """Drop all that the process has compiled, and all that it remembers of earlier calls."""
    global _version
    _version += 1
    for listener in listeners:
        listener()


@contextlib.contextmanager
def temporarily(name: str, value: Any) -> Iterator[None]:
    """Change a setting within a ``with`` block, for all threads; afterwards it is as before.

    >>> from torch_jax import config
    >>> with config.temporarily("lazy_programs", 8):
    ...     config.get("lazy_programs")
    8
    >>> config.get("lazy_programs")
    256
    """
    before = get(name)
    if value == before:
        yield
        return
    set(name, value)
    try:
        yield
    finally:
        set(name, before)


def version() -> int:
    """Return the number of drops of programs; traces of another version are stale."""
    return _version


def _checked(name: str, value: Any) -> Any:
    choices = SETTINGS[name].choices
    if choices and value not in choices:
        raise ValueError(f"torch_jax setting {name!r} must be one of {choices}, not {value!r}")
    return value
