"""Exported models and their files: JAX, NumPy and Python's library, nothing else.

This file imports neither torch nor its own package: where a model runs without PyTorch, copy it
there. ``python exported_file.py model.zip`` prints the contents of a file. A file is a zip archive:

- ``header.json``: the format's version, the inputs, and the versions that made it;
- ``program``: a function ``(weights, args, kwargs)``, as ``jax.export`` serializes it;
- ``weights.safetensors``: the weights by name, unless they are beside the archive.
"""

from __future__ import annotations

import io
import json
import os
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

FORMAT, VERSION = "torch_jax.export", 1
HEADER, PROGRAM, WEIGHTS = "header.json", "program", "weights.safetensors"

Weights = Mapping[str, Any]


def not_batched(error: NotImplementedError) -> NotImplementedError:
    """Return the error for an exported program that is mapped over a batch."""
    return NotImplementedError(
        f"{error}: an exported program runs for its own sizes only. In place of "
        "jax.vmap take jax.lax.map, or export the model with the batch"
    )


class Exported:
    """A model as a JAX program with its weights.

    Attributes:
      weights: parameters, buffers and constants by name: arrays, to be replaced or differentiated.
      header: the description in the file: ``inputs``, ``outputs``, ``platforms``, ``static`` …
    """

    def __init__(self, program: jax_export.Exported, weights: Weights, header: dict[str, Any]):
        self.program, self.weights, self.header = program, weights, header

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on arrays, as the model was called where it was exported.

        Integers and floats of another width than the model's are converted. The program is compiled
        once. Inside of ``jax.jit`` the weights are constants: jit :meth:`call_with` instead. It can
        be differentiated as often as ``vjp_order`` said.

        Raises:
          ValueError: the arguments are not those of the model.
        """
        return self.call_with(self.weights, *args, **kwargs)

    def call_with(self, weights: Weights, *args: Any, **kwargs: Any) -> Any:
        """Run :meth:`call` with other weights; as a function of them it can be differentiated."""
        given = without_static(args, kwargs, self.header.get("static", {}))
        with jax.enable_x64(True):
            try:
                return self.program.call(*self._converted((dict(weights), *given)))
            except NotImplementedError as error:
                raise not_batched(error) from error

    def _converted(self, arguments: tuple) -> tuple:
        """Return arrays of the dtypes that the program takes."""
        leaves, tree = jax.tree_util.tree_flatten((arguments, {}))
        wanted: Any = self.program.in_tree
        if wanted != tree:
            shown = jax.tree_util.tree_map(lambda _: "array", arguments[1:])
            raise ValueError(
                f"the arguments {shown} do not fit the inputs {self.header.get('inputs')}"
            )
        avals = self.program.in_avals
        arrays = [_as(leaf, aval.dtype) for leaf, aval in zip(leaves, avals, strict=True)]
        _check_shapes(arrays, avals, self.header.get("sizes", {}))
        return jax.tree_util.tree_unflatten(tree, arrays)[0]

    def mlir(self) -> str:
        """Return the program as text, in StableHLO."""
        return str(self.program.mlir_module())

    def serialize(self, vjp_order: int = 0) -> bytes:
        """Return the file as bytes, weights inside, for :func:`load`.

        Args:
          vjp_order: how often the loaded program can be differentiated.
        """
        file = io.BytesIO()
        self._write(file, self._program(vjp_order))
        return file.getvalue()

    def save(self, path: str | os.PathLike, weights: str = "inside", vjp_order: int = 0) -> None:
        """Write the file.

        Args:
          path: of the file; an existing one is replaced.
          weights: ``"inside"`` the file, or ``"beside"`` it as ``<path>.safetensors``.
          vjp_order: how often the loaded program can be differentiated.
        """
        if weights not in ("inside", "beside"):
            raise ValueError(f"weights must be 'inside' or 'beside', not {weights!r}")
        path, program = Path(path), self._program(vjp_order)
        beside = f"{path.name}.safetensors" if weights == "beside" else None
        if beside is not None:
            with _replacing(path.with_name(beside)) as file:
                _write_safetensors(file, self.weights)
        with _replacing(path) as file:
            self._write(file, program, beside)

    def _program(self, vjp_order: int) -> bytes:
        with jax.enable_x64(True):
            try:
                return bytes(self.program.serialize(vjp_order=vjp_order))
            except ImportError:
                raise _no_flatbuffers() from None

    def _write(self, file: Any, program: bytes, beside: str | None = None) -> None:
        header = self.header | {"weights": beside}
        with zipfile.ZipFile(file, "w") as archive:  # uncompressed: weights are noise
            archive.writestr(HEADER, json.dumps(header, indent=1))
            archive.writestr(PROGRAM, program)
            if beside is None:
                with archive.open(WEIGHTS, "w", force_zip64=True) as entry:
                    _write_safetensors(entry, self.weights)

    def __reduce__(self) -> tuple:
        return load, (self.serialize(vjp_order=int(self.program.has_vjp())),)

    def __repr__(self) -> str:
        lines = [f"{n}: {self.header.get(n)}" for n in ("inputs", "outputs", "platforms")]
        size = sum(np.dtype(w.dtype).itemsize * w.size for w in self.weights.values())
        lines.append(f"weights: {len(self.weights)} arrays, {size / 1e6:.1f} MB")
        return "\n".join(["an exported model", *(f"  {line}" for line in lines)])


def load(source: str | os.PathLike | bytes) -> Exported:
    """Read a file of :meth:`Exported.save`, or bytes of :meth:`Exported.serialize`.

    Raises:
      ValueError: it is damaged, no exported model, or made by a newer version; no code is executed.
        Weights beside it must be a file of their own, no link.
      FileNotFoundError: there is no such file, or its weights are not beside it.
    """
    file: Any = source
    if isinstance(source, bytes | bytearray | memoryview):
        file = io.BytesIO(source)
    elif not hasattr(source, "read"):
        file = os.fspath(source)
    by_path = isinstance(file, str)
    where = file if by_path else "the bytes"
    try:
        with zipfile.ZipFile(file) as archive:
            header = _header(archive, where)
            program = _entry(archive, PROGRAM)
            beside = header.get("weights")
            content = _entry(archive, WEIGHTS) if beside is None else b""
    except ValueError:
        raise
    except _DAMAGES as error:
        raise ValueError(f"{where} is no exported model, or damaged: {error!r}") from error
    if beside is not None:
        if not by_path:
            raise ValueError("the weights are beside the file: load it by its path")
        content = _beside(Path(file), beside)
    weights = _read_safetensors(content, where if beside is None else beside)
    try:
        parsed = jax_export.deserialize(bytearray(program))
    except ImportError:
        raise _no_flatbuffers() from None
    except Exception as error:
        raise ValueError(
            f"the program of {where}, made with jax {header.get('jax')}, cannot be read by jax "
            f"{jax.__version__}: {error}"
        ) from error
    exported = Exported(parsed, weights, header)
    _check_weights(exported, where)
    return exported


# Errors of Python's library for damaged archives and texts.
_DAMAGES = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, TypeError, ValueError,
    ArithmeticError, RuntimeError, AttributeError,
)  # fmt: skip
_MOST_OF_HEADER = 1 << 24  # bytes


def _entry(archive: zipfile.ZipFile, name: str, most: int | None = None) -> bytes:
    """Return an entry of the archive: no larger than the archive, as none is compressed."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        raise ValueError(f"{name} is compressed")
    if most is not None and entry.file_size > most:
        raise ValueError(f"{name} has {entry.file_size} bytes, where {most} are the most")
    return archive.read(name)


def _beside(path: Path, name: Any) -> bytes:
    """Return the content of the file of this name beside another one."""
    if not isinstance(name, str) or Path(name).name != name or "\0" in name:
        raise ValueError(f"{path} names weights elsewhere: {name!r}")
    file = path.parent / name
    if not stat.S_ISREG(file.lstat().st_mode):
        raise ValueError(f"{path} names weights that are no file of their own: {name!r}")
    return file.read_bytes()


def _header(archive: zipfile.ZipFile, where: str) -> dict[str, Any]:
    """Return the header, if this reader knows its version."""
    try:
        header = json.loads(_entry(archive, HEADER, _MOST_OF_HEADER))
        kind, version = header["format"], header["version"]
    except _DAMAGES as error:
        names = archive.namelist()[:5]
        raise ValueError(f"{where} is no exported model: it holds {names}") from error
    if kind != FORMAT:
        raise ValueError(f"{where} is no exported model, but {kind!r}")
    if type(version) is not int or version < 1:
        raise ValueError(
            f"{where} has version {version!r} of the format, which is no number of one"
        )
    if version > VERSION:
        raise ValueError(
            f"{where} has version {version} of the format, made by torch_jax "
            f"{header.get('torch_jax')}; this reader knows versions up to {VERSION}"
        )
    if not isinstance(header.get("static", {}), dict) or not _are_ranges(header.get("sizes", {})):
        raise ValueError(f"{where} is damaged: its header has no static arguments or sizes")
    return header


def _are_ranges(sizes: Any) -> bool:
    """Return whether this is the least and the most of each size that may change."""
    kinds = [int, int], [int, type(None)]
    return isinstance(sizes, dict) and all(
        isinstance(span, list) and list(map(type, span)) in kinds for span in sizes.values()
    )


def _no_flatbuffers() -> ImportError:
    return ImportError(
        "exported files need flatbuffers, which JAX does not bring along: pip install flatbuffers, "
        'or pip install "torch_jax[export]"'
    )


def _check_weights(exported: Exported, where: str) -> None:
    """Raise if the weights are not those that the program takes."""
    try:
        program = exported.program
        wanted = jax.tree_util.tree_unflatten(program.in_tree, program.in_avals)[0][0]
        names = wanted.keys() | exported.weights.keys()
    except _DAMAGES as error:
        raise ValueError(f"{where} has a program that takes no weights: {error}") from error
    for name in sorted(names):
        found, aval = exported.weights.get(name), wanted.get(name)
        if found is None or aval is None or (found.shape, found.dtype) != (aval.shape, aval.dtype):
            have = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
            want = "nothing" if aval is None else f"{aval.dtype}{list(aval.shape)}"
            raise ValueError(f"{where}: weight {name!r} is {have} where the program takes {want}")


# --- arguments ------------------------------------------------------------------------------------


def as_static(value: Any) -> Any:
    """Return an argument fixed by an export in a form for files: a number, string, or its text."""
    return value if isinstance(value, bool | int | float | str) else repr(value)


class Arguments(NamedTuple):
    """The arguments of a call; errors and files name one as ``args[0]`` or ``kwargs['mask']``."""

    args: tuple
    kwargs: dict[str, Any]

    def map(self, function: Callable[[str, Any], Any], **options: Any) -> tuple:
        """Apply a function of names to all; leave out named arguments of which nothing is left."""
        found = jax.tree_util.tree_map_with_path(
            lambda path, leaf: function(jax.tree_util.keystr(path).removeprefix("."), leaf),
            self,
            **options,
        )
        return found.args, {n: v for n, v in found.kwargs.items() if jax.tree_util.tree_leaves(v)}


def without_static(args: tuple, kwargs: dict[str, Any], static: Mapping[str, Any]) -> tuple:
    """Return the arguments with None for those fixed by the export, which must be the same."""

    def checked(name: str, leaf: Any) -> Any:
        if name not in static and (leaf is None or hasattr(leaf, "dtype") or np.isscalar(leaf)):
            return leaf
        fixed, given = static.get(name), as_static(leaf)
        if leaf is not None and (type(given) is not type(fixed) or given != fixed):
            raise ValueError(f"argument {name} was exported as {fixed!r} and cannot be {leaf!r}")
        return None

    return Arguments(args, kwargs).map(checked, is_leaf=lambda leaf: leaf is None)


def _as(value: Any, dtype: Any) -> Any:
    """Return an array in the wanted dtype, if that is another width of the same kind."""
    array = value if isinstance(value, jax.Array | np.ndarray) else np.asarray(value)
    if array.dtype == dtype:
        return array
    kinds = (jnp.integer, jnp.floating, jnp.complexfloating)
    if any(jnp.issubdtype(array.dtype, k) and jnp.issubdtype(dtype, k) for k in kinds):
        return jnp.asarray(array).astype(dtype)
    raise ValueError(f"an argument is {array.dtype} where the program takes {dtype}")


def _check_shapes(arrays: list[Any], avals: Sequence[Any], ranges: Mapping[str, Any]) -> None:
    """Raise if sizes are not those of the program, or symbols differ or are out of range."""
    known: dict[str, int] = {}
    for array, aval in zip(arrays, avals, strict=True):
        fits = len(array.shape) == len(aval.shape)
        for size, wanted in zip(array.shape, aval.shape, strict=False):
            if isinstance(wanted, int):
                fits = fits and size == wanted
            elif str(wanted) in ranges:
                least, most = ranges[str(wanted)]
                fits = fits and known.setdefault(str(wanted), size) == size
                fits = fits and least <= size and (most is None or size <= most)
        if not fits:
            spans = "".join(f", {name} from {a} to {b}" for name, (a, b) in ranges.items())
            raise ValueError(
                f"an argument has shape {list(array.shape)} where the program takes "
                f"{aval.str_short()}{spans}"
            )


# --- files ----------------------------------------------------------------------------------------

_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
_LETTERS = {name: letters for letters, name in _NAMES.items()}


def can_hold(array: Any) -> bool:
    """Return whether a file can hold a weight of this dtype."""
    return str(array.dtype) in _LETTERS


def _write_safetensors(file: Any, weights: Weights) -> None:
    """Write arrays by name, in the format of the library safetensors."""
    entries, at = {}, 0
    for name, array in weights.items():
        size = array.size * np.dtype(array.dtype).itemsize
        if (letters := _LETTERS.get(np.dtype(array.dtype).name)) is None:
            raise TypeError(f"weight {name!r} is {array.dtype}, which safetensors cannot hold")
        entries[name] = {
            "dtype": letters, "shape": list(array.shape), "data_offsets": [at, at + size],
        }  # fmt: skip
        at += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    file.write(len(header).to_bytes(8, "little") + header)
    for array in weights.values():
        file.write(np.ascontiguousarray(array).tobytes())


def _read_safetensors(content: bytes, where: str) -> dict[str, jax.Array]:
    """Return arrays by name; raise for a file that is cut off, or of another format."""
    try:
        length = int.from_bytes(content[:8], "little")
        entries = json.loads(content[8 : 8 + length])
        entries.pop("__metadata__", None)
        data = memoryview(content)[8 + length :]
        found = {}
        for name, entry in entries.items():
            first, last = entry["data_offsets"]
            if not 0 <= first <= last <= len(data) or any(n < 0 for n in entry["shape"]):
                raise ValueError(f"{name} is outside of the file")
            flat = np.frombuffer(data[first:last], dtype=jnp.dtype(_NAMES[entry["dtype"]]))
            found[name] = flat.reshape(entry["shape"])
        with jax.enable_x64(True):
            return {name: jnp.asarray(array) for name, array in found.items()}
    except _DAMAGES as error:
        raise ValueError(f"the weights in {where} are damaged: {error!r}") from error


@contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    """Write a file that replaces the one of its name when it is whole."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            yield file
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)


if __name__ == "__main__":
    print(load(sys.argv[1]))
