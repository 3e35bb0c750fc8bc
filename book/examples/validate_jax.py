from layer_norm_jax import layer_norm  # eps = 1e-5 is fixed in it

from normcheck import assert_valid


def test_layer_norm():
    assert_valid(layer_norm, framework="jax", eps=1e-5, quick=True, most_features=300)
