from layer_norm_torch import LayerNorm

from normcheck import assert_valid


def test_layer_norm():
    assert_valid(LayerNorm.apply, framework="torch")


def test_layer_norm_in_half_precision():
    assert_valid(
        LayerNorm.apply,
        framework="torch",
        quick=True,
        dtypes=("float16", "bfloat16"),
        accumulate="float16",
    )
