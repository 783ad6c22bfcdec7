"""The library of a program's matrix products on the CPU."""

import jax
import jax.numpy as jnp
import pytest

from torch_jax.compiler import options, products
from torch_jax.compiler.products import Product


def text(*shapes, equation="mk,nk->mn", dtype=jnp.float32):
    given = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]

    def product(a, b):
        return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)

    return jax.jit(product).lower(*given).as_text()


@pytest.mark.parametrize(
    ("program", "found", "suits"),
    [
        (text((8, 4), (6, 4)), Product(1, 8, 4, 6, "f32"), True),
        (text((8, 4), (4, 6), equation="mk,kn->mn"), Product(1, 8, 4, 6, "f32"), True),
        (
            text((2, 3, 8, 4), (2, 3, 6, 4), equation="nhqd,nhkd->nhqk"),
            Product(6, 8, 4, 6, "f32"),
            True,
        ),
        (
            text((2, 512, 64), (2, 512, 64), equation="nqd,nkd->nqk"),
            Product(2, 512, 64, 512, "f32"),
            False,
        ),
        (text((65, 4), (6, 4), dtype=jnp.bfloat16), Product(1, 65, 4, 6, "bf16"), False),
        (text((64, 4), (6, 4), dtype=jnp.bfloat16), Product(1, 64, 4, 6, "bf16"), True),
    ],
)
def test_the_products_of_a_program(program, found, suits):
    assert products.products(program) == [found]
    assert products.suit_ynnpack(program) == suits


def test_one_product_that_does_not_suit_decides():
    large = text((2, 512, 64), (2, 512, 64), equation="nqd,nkd->nqk")
    assert not products.suit_ynnpack(text((8, 4), (6, 4)) + large)


def test_what_is_not_understood_is_left_to_eigen():
    program = text((8, 4), (6, 4))
    assert products.products(program.replace("8x4", "?x4")) is None
    assert products.products(program.replace("contracting_dims", "other")) is None
    assert not products.suit_ynnpack(program.replace("8x4", "?x4"))
    assert not products.suit_ynnpack("")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the option is the CPU's")
def test_the_options_of_a_program_follow_its_products():
    name = "xla_cpu_experimental_ynn_fusion_type"
    chosen = {options.whole(one).get(name) for one in (text((8, 4), (6, 4)), "")}
    reduce = "LIBRARY_FUSION_TYPE_REDUCE"
    assert chosen in ({reduce, f"LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,{reduce}"}, {None})
