import numpy as np

from mxtrain.vision.images.augment import augment_batch, mix_batch
from mxtrain.vision.images.settings import Augment


def images(count=64, channels=3, side=12):
    return np.random.RandomState(0).randint(1, 256, (count, channels, side, side), dtype=np.uint8)


def run(augment, image, index=None, seed=0, epoch=0):
    index = np.arange(len(image)) if index is None else index
    return augment_batch(image[index], index, augment, seed=seed, epoch=epoch)


def test_crop_gives_a_window_of_the_padded_image():
    image = images()
    cropped = run(Augment(crop_padding=2), image)
    padded = np.pad(image, ((0, 0), (0, 0), (2, 2), (2, 2)))
    seen = set()
    for before, after in zip(padded, cropped):
        fits = [(y, x) for y in range(5) for x in range(5) if np.array_equal(before[:, y : y + 12, x : x + 12], after)]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) > 15  # of 25


def test_flip_mirrors_about_half():
    image = images(400)
    flipped = run(Augment(flip=True), image)
    mirrored = [np.array_equal(after, before[..., ::-1]) for before, after in zip(image, flipped)]
    kept = [np.array_equal(after, before) for before, after in zip(image, flipped)]
    assert all(m != k for m, k in zip(mirrored, kept))
    assert 160 < sum(mirrored) < 240


def test_cutout_makes_a_square_black():
    cut = run(Augment(cutout=4), images(200))
    black = (cut == 0).all(axis=1)
    assert black.sum(axis=(1, 2)).max() == 16
    assert black.sum(axis=(1, 2)).min() >= 4  # a corner at least stays inside
    assert len({row.tobytes() for row in black}) > 60


def test_a_sample_does_not_depend_on_its_batch():
    image = images()
    augment = Augment(crop_padding=2, flip=True, cutout=3)
    whole = run(augment, image)
    assert np.array_equal(run(augment, image, index=np.array([40, 2, 9])), whole[[40, 2, 9]])
    assert not np.array_equal(run(augment, image, epoch=1), whole)
    assert not np.array_equal(run(augment, image, seed=1), whole)


def mix(augment, image, label, index):
    return mix_batch(
        lambda chosen: (image[chosen], label[chosen]),
        index,
        augment,
        num_samples=len(image),
        num_classes=len(image),
        seed=0,
        epoch=0,
    )


def test_mixup_blends_sets_of_classes_as_images():
    image, label = images(50), np.arange(50, dtype=np.int32)
    _, probability = mix(Augment(mixup=1.0), image, label, np.arange(50))
    sets = (np.random.RandomState(1).rand(50, 6) < 0.4).astype(np.int32)
    _, mixed = mix(Augment(mixup=1.0), image, sets, np.arange(50))
    assert mixed.dtype == np.float32
    np.testing.assert_allclose(mixed, probability @ sets, atol=1e-6)


def test_mixup_blends_images_as_labels():
    image, label = images(50), np.arange(50, dtype=np.int32)
    mixed, probability = mix(Augment(mixup=1.0), image, label, np.arange(50))
    assert mixed.dtype == probability.dtype == np.float32
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-6)
    # Each sample is its own class here, so the labels say exactly what the image must be.
    np.testing.assert_allclose(mixed, np.einsum("bk,kchw->bchw", probability, image), atol=1e-2)
    assert ((probability > 0).sum(1) == 2).mean() > 0.9


def test_cutmix_area_equals_label_share():
    image = np.broadcast_to(np.arange(50, dtype=np.uint8)[:, None, None, None], (50, 3, 16, 16))
    mixed, probability = mix(Augment(cutmix=1.0), image, np.arange(50, dtype=np.int32), np.arange(50))
    for row in range(50):
        assert set(np.unique(mixed[row]).astype(int)) == set(np.flatnonzero(probability[row]))
        for label in np.flatnonzero(probability[row]):
            assert (mixed[row] == label).mean() == np.float32(probability[row, label])


def test_mixing_does_not_depend_on_the_batch():
    image, label = images(50), np.arange(50, dtype=np.int32)
    augment = Augment(mixup=0.4, cutmix=1.0)
    mixed, probability = mix(augment, image, label, np.arange(50))
    part, part_probability = mix(augment, image, label, np.array([33, 5]))
    assert np.array_equal(part, mixed[[33, 5]])
    assert np.array_equal(part_probability, probability[[33, 5]])
