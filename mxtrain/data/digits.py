"""1,797 real handwritten digits of 8 x 8 pixels that come with scikit-learn, for samples of several fields.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits" (1998), the test part, by scikit-learn.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from mxtrain.data.loading.official import sklearn_datasets


def read_digits() -> Tuple[np.ndarray, np.ndarray]:
    """Returns all digits and their labels.

    Returns:
        image_N1HW uint8 with white 255, and label_N.

    Raises:
        DataError: scikit-learn is not installed.
    """
    path = sklearn_datasets("digits") / "data" / "digits.csv.gz"
    if path.is_file():
        table = np.loadtxt(path, delimiter=",")  # lint: a file of an installed package
        pixel_NP, label_N = table[:, :-1], table[:, -1]
    else:
        from sklearn.datasets import load_digits

        pixel_NP, label_N = load_digits(return_X_y=True)
    image = np.rint(pixel_NP * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)  # pixels count from 0 to 16
    return image, label_N.astype(np.int32)
