import pytest

from mxtrain.engine.backend import ARRAYS_PER_LOOK, all_finite, nd


@pytest.mark.parametrize("count", [0, 1, ARRAYS_PER_LOOK, ARRAYS_PER_LOOK + 1, 2 * ARRAYS_PER_LOOK + 1])
def test_all_finite_takes_any_number_of_arrays(count):
    """MXNet's operator aborts the process for 201."""
    arrays = [nd.ones((3,)) for _ in range(count)]
    assert all_finite(arrays)
    if count:
        arrays[-1][1] = float("nan")
        assert not all_finite(arrays)
