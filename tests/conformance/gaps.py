"""Every case of PyTorch's databases that does not pass on jax, each with its reason.

A line is ``"entry check"`` or ``"entry check:dtype,dtype"``, where a check is one of
:data:`tests.conformance.checks.CHECKS`, ``errors``, ``modules``, ``optimizers``, or ``*`` for all.
The suite fails if a case fails that is not here, and if a line is here of which no case fails.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.conformance.report import Result

GAPS: dict[str, list[str]] = {
    "complex32 has no twin in JAX": [
        "chalf *",
        "complex *:float16",
        "view_as_complex *:float16",
    ],
    "of equal elements another is picked, and gets the gradient": [
        "mode backward:bfloat16,float16",
        "msort backward:bfloat16,float16",
        "sort backward:bfloat16,float16",
        "topk backward:bfloat16",
    ],
    "the exception on the CPU is of another type than for other refusals of the operator": [
        "narrow_copy errors",
    ],
    "the CPU warns that it resizes an output only where the input has dimensions": [
        "mode out=",
    ],
    "the CPU makes a matrix of a fitting output, and warns of it, where the input is a vector": [
        "nn.functional.linear out=",
    ],
    "the CPU gives infinity or NaN where the device gives the value": [
        "matrix_exp forward:bfloat16,float16",
        "matrix_exp backward:bfloat16,float16",
    ],
    "the CPU resizes no output, where the mean is a tensor and the deviation a number": [
        "normal out=",
    ],
    "a layout other than strided": [
        "sparse.mm.reduce *",
        "sparse.sampled_addmm *",
        "to_sparse *",
    ],
}

# Entries that ``torch.vmap`` gives otherwise than the CPU, or one example at a time.
VMAP_GAPS: dict[str, list[str]] = {
    "random numbers are others than the CPU's": [
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "normal.in_place",
        "pca_lowrank",
        "rand_like",
        "randint_like",
        "randn_like",
        "svd_lowrank",
        "uniform",
    ],
    "memory that nobody has written": ["empty_like"],
    "eigenvectors have no sign": ["linalg.eigh"],
    "complex32 has no twin in JAX": ["chalf"],
    "what it gives hangs on values, so it runs for one example at a time": [
        "argwhere",
        "bincount",
        "nn.functional.ctc_loss",
    ],
    "the geometry of a tensor is changed in place, for one example at a time": ["resize_as_"],
}

# Entries whose derivative by JAX is another one than PyTorch's, in some sample. Refusals are none.
JAX_GAPS: dict[str, list[str]] = {
    "of equal elements another is picked, and gets the gradient": [
        "kthvalue",
        "linalg.lu_factor",
        "lu",
        "mode",
        "msort",
        "sort",
        "topk",
    ],
    "JAX has no derivative, and says so": [
        "index_reduce.prod",
        "linalg.eig",
        "linalg.eigvals",
        "linalg.householder_product",
        "matrix_exp",
        "nextafter",
        "ormqr",
        "scatter_reduce.prod",
    ],
    "a matrix that is not of full rank, whose singular vectors JAX differentiates": [
        "linalg.lstsq",
        "linalg.lstsq.grad_oriented",
        "linalg.pinv",
        "linalg.pinv.singular",
        "linalg.svd",
        "pinverse",
        "svd",
    ],
    "the CPU's gradient is that of a matrix that need not be Hermitian": ["linalg.pinv.hermitian"],
    "the CPU does not share a negative gradient between equal elements": [
        "_segment_reduce.lengths",
        "_segment_reduce.offsets",
    ],
    "the CPU's gradient of the input is that of the elements that are overwritten": [
        "as_strided_scatter",
    ],
    "complex32 has no twin in JAX": ["chalf"],
}

# Entries about layouts other than strided; they count in no percentage.
OTHER_LAYOUTS = ("sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse")


class Gap(NamedTuple):
    """One line: an entry, a check, and the dtypes it is about (empty: any)."""

    entry: str
    check: str
    dtypes: tuple[str, ...]
    reason: str

    def covers(self, check: str, dtype: str) -> bool:
        """Whether a case of this entry is meant."""
        return self.check in (check, "*") and (not self.dtypes or dtype in self.dtypes)


def gaps_of(entry: str) -> list[Gap]:
    """The lines about an entry."""
    return [
        Gap(entry, check, tuple(filter(None, dtypes.split(","))), reason)
        for reason, lines in GAPS.items()
        for name, _, rest in (line.partition(" ") for line in lines)
        for check, _, dtypes in (rest.partition(":"),)
        if name == entry
    ]


def judge(results: list[Result], gaps: list[Gap]) -> None:
    """Failures and the list of gaps must agree."""
    unlisted = []
    stale = set(gaps)
    for result in results:
        check = "forward" if result.row.startswith("forward") else result.row
        covering = {g for g in gaps if g.covers(check, result.dtype)}
        if result.message and not covering:
            unlisted.append(f"{result.row} {result.dtype}: {result.message}")
        if result.message:
            stale -= covering
    assert not unlisted, "\n".join(unlisted)
    assert not stale, f"these pass now; take them out of gaps.py: {stale}"
