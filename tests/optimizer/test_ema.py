import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.optimizer.ema import ARRAYS_PER_CALL, ExponentialMovingAverage


def test_average_follows_its_formula_for_more_arrays_than_one_call_takes():
    rng = np.random.RandomState(0)
    values = {f"w{i}": nd.array(rng.randn(2, 3)) for i in range(ARRAYS_PER_CALL + 3)}
    ema = ExponentialMovingAverage(0.5, values, lambda: None)
    expected = {name: value.asnumpy().astype(np.float64) for name, value in values.items()}
    for step in range(1, 30):
        for name, value in values.items():
            value[:] = rng.randn(2, 3)
            keep = min(0.5, (1 + step) / (10 + step))
            expected[name] = keep * expected[name] + (1 - keep) * value.asnumpy()
        ema.update(step)
    for name, array in ema.arrays.items():
        np.testing.assert_allclose(array.asnumpy(), expected[name], rtol=1e-5, atol=1e-6)


def test_applied_puts_the_live_values_back_bit_for_bit():
    values = {"w": nd.array([1.0, 1 / 3])}
    ema = ExponentialMovingAverage(0.9, values, lambda: None)
    values["w"][:] = nd.array([5.0, 1 / 7])
    live = values["w"].asnumpy()
    with ema.applied():
        np.testing.assert_array_equal(values["w"].asnumpy(), ema.arrays["w"].asnumpy())
        assert values["w"].asnumpy()[0] == 1.0
    np.testing.assert_array_equal(values["w"].asnumpy(), live)
