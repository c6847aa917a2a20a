"""The axes of images in observations, and what environments of other spaces are told."""

from __future__ import annotations

from typing import Any, Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, Sequence, Tuple
from gymnasium.wrappers import FrameStackObservation

from mxtrain.errors import DataError
from mxtrain.reinforcement.environments import EnvironmentFactory, Spaces, VectorEnvironment
from mxtrain.reinforcement.gymnasium import Gymnasium
from mxtrain.reinforcement.image_layout import find_images


def box(*shape: int, dtype: Any = np.uint8, low: float = 0, high: float = 255) -> Box:
    return Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    "space, channels, shape, order",
    [
        (box(210, 160, 3), "auto", (3, 210, 160), (2, 0, 1)),
        (box(4, 84, 84), "auto", (4, 84, 84), (0, 1, 2)),
        (box(3, 36, 40), "auto", (3, 36, 40), (0, 1, 2)),
        (box(32, 33, 33), "auto", (32, 33, 33), (0, 1, 2)),
        (box(33, 34, 34), "auto", (34, 33, 34), (2, 0, 1)),
        (box(84, 84, 1), "auto", (1, 84, 84), (2, 0, 1)),
        (box(84, 84), "auto", (1, 84, 84), (0, 1)),
        (box(7, 7), "auto", (1, 7, 7), (0, 1)),
        (box(4, 84, 80, 3), "auto", (12, 84, 80), (0, 3, 1, 2)),
        (box(4, 84, 80, 1), "auto", (4, 84, 80), (0, 3, 1, 2)),
        (box(4, 3, 84, 80), "auto", (12, 84, 80), (0, 1, 2, 3)),
        (box(4, 5, 3), "auto", (3, 4, 5), (2, 0, 1)),
        (box(5, 5, 5), "auto", (5, 5, 5), (2, 0, 1)),
        (box(4, 84, 4), "auto", (4, 4, 84), (2, 0, 1)),
        (box(84, 84, 84), "first", (84, 84, 84), (0, 1, 2)),
        (box(4, 84, 84), "last", (84, 4, 84), (2, 0, 1)),
        (box(84, 84, dtype=np.float32, high=1), "auto", (1, 84, 84), (0, 1)),
        (box(4, 84, 84, dtype=np.float32, high=1), "auto", (4, 84, 84), (0, 1, 2)),
        (box(84, 84, 3, dtype=np.float32), "auto", (3, 84, 84), (2, 0, 1)),
    ],
)
def test_axes_of_images(space: Box, channels: Any, shape: Any, order: Any) -> None:
    found = find_images(space, channels, "E-v0")
    assert found is not None and (found.shape, found.order) == (shape, order)
    number = np.arange(np.prod(space.shape)).reshape(space.shape)
    expected = number.transpose(order).reshape(shape) * (255 if space.high.max() == 1 else 1)
    np.testing.assert_array_equal(found.read(number), expected)
    with pytest.raises(ValueError, match="has the shape"):
        found.read(number.reshape((space.shape[-1], *space.shape[:-1], 1)))


@pytest.mark.parametrize(
    "space",
    [
        box(128),
        box(9, 9, high=9),
        box(10, 10, 4, dtype=np.bool_, high=1),
        box(10, 10, 4, dtype=np.float32, high=1),
        box(84, 84, dtype=np.float32, low=-1, high=1),
        box(84, 84, 3, dtype=np.float32, high=np.inf),
        box(84, 84, 3, 4),
        box(2, 3, 40, 40, 3),
    ],
)
def test_numbers_that_are_not_images(space: Box) -> None:
    assert find_images(space, "auto", "E-v0") is None


@pytest.mark.parametrize("shape", [(84, 84, 84), (64, 84, 84), (84, 84, 40), (4, 84, 84, 84)])
def test_unknown_channels_are_refused_with_the_setting(shape: Any) -> None:
    with pytest.raises(DataError, match=r"dataset.id=E-v0: .* Type dataset.channels=first or dataset.channels=last"):
        find_images(box(*shape), "auto", "E-v0")


def test_channels_of_vector_observations_are_refused() -> None:
    with pytest.raises(DataError, match="Type dataset.channels=auto"):
        find_images(box(128), "first", "E-v0")


class Showing(gymnasium.Env):
    """Shows numbers of a space."""

    action_space = Discrete(2)

    def __init__(self, space: Any, render_mode: Any = None):
        self.observation_space, self.render_mode = space, render_mode

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: int) -> Any:
        return self.observation_space.sample(), 1.0, False, False, {}


def showing(space: Any, stack: int = 0, render_mode: Any = None) -> gymnasium.Env:
    made = Showing(space, render_mode)
    return FrameStackObservation(made, stack) if stack else made


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("Showing-v0", entry_point=showing)
    yield
    del gymnasium.registry["Showing-v0"]


@pytest.mark.parametrize(
    "space, stack, shape",
    [
        (box(84, 84), 4, (4, 84, 84)),
        (box(84, 84, 3), 2, (6, 84, 84)),
        (box(84, 84, 1), 4, (4, 84, 84)),
        (box(84, 84), 0, (1, 84, 84)),
    ],
)
def test_stacks_of_gymnasium_enter_as_channels(space: Any, stack: int, shape: Any) -> None:
    maker = EnvironmentFactory("Showing-v0", {"space": space, "stack": stack})
    environment = maker.make()
    spaces = Spaces.from_environment(environment, "Showing-v0")
    assert (spaces.shape, spaces.dtype) == (shape, "uint8") and f"{shape[0]} channel" in spaces.remark
    playing = VectorEnvironment(maker, spaces, ["one"])
    playing.start_episode(0, 3)
    first, _ = environment.reset(seed=3)
    if stack:
        np.testing.assert_array_equal(playing.observation_E[0][-1], first[-1].reshape(84, 84, -1)[..., -1])
    else:
        np.testing.assert_array_equal(playing.observation_E[0][0], first)


def opened(space: Any, **settings: Any) -> Any:
    dataset = Gymnasium(id="Showing-v0", kwargs={"space": space}, **settings)
    splits = dataset.open()
    return splits.shape, dataset.remark(None, splits)  # type: ignore[arg-type]  # it does not look at it


def test_remarks_describe_observations() -> None:
    assert opened(box(210, 160, 3)) == ((3, 210, 160), "")
    assert opened(box(128)) == ((128,), "") and opened(Discrete(5)) == ((5,), "")
    assert opened(MultiBinary(4)) == ((4,), "")
    shape, said = opened(box(20, 20, 3))
    assert shape == (3, 20, 20) and "smaller than 36 x 36" in said and "dense layers" in said
    shape, said = opened(box(4, 84, 84))
    assert "(4, 84, 84) are read as images of 84 x 84 with 4 channels" in said and "dataset.channels=last" in said
    assert opened(box(4, 84, 84), channels="last")[0] == (84, 4, 84)
    shape, said = opened(box(10, 10, 4, dtype=np.float32, high=1))
    assert shape == (400,) and "enter as 400 numbers" in said
    shape, said = opened(Dict({"image": box(40, 40, 3), "speed": box(2, dtype=np.float32)}))
    assert shape == (4802,) and "images in them go through no convolutions" in said
    assert "no convolutions" not in opened(Tuple([Discrete(2), box(3, dtype=np.float32)]))[1]


@pytest.mark.parametrize("space", [Sequence(Discrete(3)), Graph(Discrete(3), None)])
def test_spaces_without_a_size_are_refused(space: Any) -> None:
    with pytest.raises(DataError, match="have no fixed size. Wrap the environment"):
        opened(space)


def test_channels_of_a_space_of_parts_are_refused() -> None:
    with pytest.raises(DataError, match="and no images. Type dataset.channels=auto"):
        opened(Dict({"image": box(40, 40, 3)}), channels="last")


def test_a_flattened_observation_of_another_shape_is_refused() -> None:
    spaces = Spaces.from_environment(Showing(box(4, 6, dtype=np.float32, high=1)), "Showing-v0")
    assert spaces.convert_observation(np.ones((4, 6), np.float32)).shape == (24,)
    with pytest.raises(ValueError, match=r"shape \(6, 4\), and not \(4, 6\)"):
        spaces.convert_observation(np.ones((6, 4), np.float32))
