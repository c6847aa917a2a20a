"""Input of networks with features of users and candidates: ids into one joined table, and numbers. Exported folders
have a copy of this module.

Legend: B batch, C candidates, U users, I items, V and W fields of a user and of an item, M and N their numbers.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from mxtrain.recommendation.fields import RecommenderFields

Features = Tuple[np.ndarray, np.ndarray]
"""Ids (E, F) from 0 on, and numbers (E, M) of all users or items."""
IDS, NUMBERS = "ids", "numbers"
"""Names of these two arrays in files of exported folders."""


def features_file(side: str) -> str:
    """Returns the name of the file of exported folders with the features of users or items.

    Args:
        side: "user" or "item".
    """
    return f"{side}_features.npz"


class JoinedRows(NamedTuple):
    """All users and items as ids of one joined table and as numbers.

    Attributes:
        user_UV, item_IW: int32; the first field is user or item itself.
        user_UM, item_IN: float32.
    """

    user_UV: np.ndarray
    item_IW: np.ndarray
    user_UM: np.ndarray
    item_IN: np.ndarray

    def inputs(self, user_B: np.ndarray, item_BC: np.ndarray) -> List[np.ndarray]:
        """Returns the network's inputs: ids (B, V + C W) and, if there are any, numbers (B, C (M + N))."""
        item_BK = self.item_IW[item_BC].reshape(len(user_B), -1)
        arrays = [np.concatenate([self.user_UV[user_B], item_BK], axis=1)]
        count = self.user_UM.shape[1] + self.item_IN.shape[1]
        if count:
            shape = (*item_BC.shape, self.user_UM.shape[1])
            user_BCM = np.broadcast_to(self.user_UM[user_B][:, None], shape)
            number_BCN = np.concatenate([user_BCM, self.item_IN[item_BC]], axis=2)
            arrays.append(number_BCN.reshape(len(user_B), -1))
        return arrays


def join_rows(fields: RecommenderFields, users: Optional[Features], items: Optional[Features]) -> JoinedRows:
    """Returns all users and items as rows of one joined table.

    Args:
        fields: fields of the network.
        users, items: features; None = no features.
    """
    rows: List[Tuple[np.ndarray, np.ndarray]] = []
    begin = 0
    for sizes, features in ((fields.user_sizes, users), (fields.item_sizes, items)):
        id_EF = begin + np.arange(sizes[0], dtype=np.int32)[:, None]
        number_EM = np.zeros((sizes[0], 0), np.float32)
        if features is not None:
            id_EF = np.concatenate([id_EF, begin + sizes[0] + features[0]], axis=1).astype(np.int32)
            number_EM = features[1]
        rows.append((id_EF, number_EM))
        begin += sum(sizes)
    (user_UV, user_UM), (item_IW, item_IN) = rows
    return JoinedRows(user_UV, item_IW, user_UM, item_IN)
