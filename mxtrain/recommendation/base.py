"""Base class of recommendation datasets: interactions of users with items."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.checking.problems import STRICT, DataLocation, Findings, call_or_report
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.loading.dataset_files import exists
from mxtrain.data.loading.text_stream import open_text
from mxtrain.data.predict_inputs import as_list, rows_from
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits, open_splits
from mxtrain.data.table.cell_text import known_spelling
from mxtrain.data.table.columns import given_rows
from mxtrain.errors import CheckpointError, ConfigError, DataError, did_you_mean, run_dir_setting
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.given_features import GivenFeatures
from mxtrain.recommendation.given_histories import (
    HISTORY,
    JSON_LINES,
    histories_from,
    histories_of_tables,
    open_histories,
)
from mxtrain.recommendation.joined_rows import IDS, NUMBERS, Features, JoinedRows, features_file, join_rows
from mxtrain.recommendation.kinds import NextItem, UserHistories
from mxtrain.recommendation.losses import RankingLoss
from mxtrain.recommendation.model import Recommender
from mxtrain.recommendation.sequences import SequenceSamples, leave_last_out
from mxtrain.recommendation.side_features import SideFile, whole_number
from mxtrain.recommendation.signature import RecommendationSignature
from mxtrain.recommendation.source import (
    FEW_ITEMS,
    MIN_INTERACTIONS,
    InteractionRows,
    Interactions,
    keep_last_of_each,
    leave_one_out,
)
from mxtrain.recommendation.times import describe_times
from mxtrain.types import MAX_COUNT, BatchSize, Positive, Shape
from mxtrain.types.kinds import Gives, Preference, TargetKind

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model
    from mxtrain.types.annotations import Json

log = logging.getLogger(__name__)

ALL = "all"
"""Argument of `predict` that stands for all users, instead of a file of user ids."""


class InteractionDataset(BaseDataset):
    """Interactions of users with items, split by leave-one-out.

    The last interaction of each user is a test sample, the one before it a validation sample. For `NextItem`, samples
    are sequences, in which a user may have an item several times.
    """

    signature_class: ClassVar[Type[Signature]] = RecommendationSignature
    gives: ClassVar[Gives] = Gives(UserHistories, Preference, NextItem)
    data_checks: ClassVar[DataChecks] = DataChecks((FEW_ITEMS,))

    feedback: Literal["implicit", "explicit"] = "implicit"
    """implicit = interactions without ratings: the task ranks items; explicit = interactions with ratings, which are
    predicted; needs loss=l2 metric=[root_mean_squared_error,mean_absolute_error]
    trainer.monitor=val/root_mean_squared_error."""
    negatives: Annotated[int, pydantic.Field(ge=1, le=999)] = 4
    """Number of negative items per training sample: random items that the user does not have in the training split, new
    ones in each epoch; not used for ratings."""
    sampled_negatives: Annotated[int, pydantic.Field(ge=1, le=9999)] = 99
    """Number of negative items that metrics whose names end in _sampled compare the held-out item with: random items
    that the user has in no split. Fewer if a user does not have that many."""
    max_history: Positive = 50
    """Maximum number of a user's items that a network with histories reads. If the user has more, fism and svd_pp read
    a random choice, sasrec and gru4rec the newest."""
    largest_batch: ClassVar[int] = 512
    batch_size: BatchSize = "auto"
    """Interactions per optimizer step, over all devices and workers together, without their negatives; auto = 512, or
    fewer if there are few samples."""
    eval_batch_size: Positive = 256
    """Users per batch of an evaluation."""

    _is_ordered: bool = False
    """True if samples are sequences."""
    _has_sampled_loss: bool = False
    """True if the loss compares the next item with sampled ones."""

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        """See `BaseDataset.for_run`: sequences if the next item is learned."""
        dataset = self.model_copy()
        dataset._is_ordered, dataset._has_sampled_loss = issubclass(target, NextItem), isinstance(loss, RankingLoss)
        return dataset

    @property
    def says_times(self) -> bool:
        """Returns True if the log says how times were read: false for data that have none."""
        return True

    @property
    def missing_order(self) -> str:
        """Returns the settings that tell the order of a user's interactions, if none is given; otherwise empty."""
        return ""

    def read(self, findings: Findings) -> InteractionRows:
        """Reads all interactions.

        Args:
            findings: collects problems of the data.

        Raises:
            DataError: the data cannot be read.
        """
        raise NotImplementedError

    @property
    def feature_setting(self) -> str:
        """Returns the setting that chooses features of users or items; empty if none are chosen."""
        return ""

    def side_file(self, side: str) -> Optional[Union[SideFile, GivenFeatures]]:
        """Returns the table of additional features of users or items; None if there is none.

        Args:
            side: "user" or "item".
        """
        return None

    def item_titles(self) -> Mapping[str, str]:
        """Returns the titles of items by id, for people who read predictions; empty if there are none.

        Raises:
            DataError: the file of items cannot be read, or an item has two titles.
        """
        return {}

    def for_file(self, path: str) -> Optional[InteractionDataset]:
        """Returns the dataset that reads another file in the form of the training data; None if `path` is none."""
        return None

    @property
    def data_name(self) -> str:
        """Returns the name of the data, for messages."""
        raise NotImplementedError

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        pairs, is_rated = self.read(findings), self.feedback == "explicit"
        if pairs.time_P is not None and self.says_times:
            log.info("%s: %s", self.data_name, describe_times(pairs.time_P, pairs.are_dates))
        if self._is_ordered:
            return self._examine_sequences(pairs, findings)
        pairs = keep_last_of_each(pairs, findings, reports_dropped=is_rated)
        for side, names in (("users", pairs.catalog.users), ("items", pairs.catalog.items)):
            _warn_about_spellings(side, names)
        for file, ids in self._side_files(pairs.catalog) if findings.keeps_going else ():
            call_or_report(findings, DataLocation(file.path), partial(_check, file, ids, findings))
        train, val, test = leave_one_out(pairs, self.split_seed, findings)
        if not len(val):
            raise self._too_few()
        if not is_rated:
            self._check_num_sampled(train)
        mean = [float(train.rating_N.mean(dtype=np.float64))] if is_rated else []
        return Splits(train, val, test, class_names=[], mean=mean)

    def _examine_sequences(self, pairs: InteractionRows, findings: Findings) -> Splits:
        for side, names in (("users", pairs.catalog.users), ("items", pairs.catalog.items)):
            _warn_about_spellings(side, names)
        train, val, test = leave_last_out(pairs, findings)
        if not len(val):
            raise self._too_few()
        return Splits(train, val, test, class_names=[])

    def _too_few(self) -> DataError:
        return DataError(
            f"{self.data_name}: no user has {MIN_INTERACTIONS} items, so none can be held out. Give more interactions."
        )

    def _check_num_sampled(self, train: Interactions) -> None:
        available = self._num_sampled(train)
        if available == self.sampled_negatives:
            return
        user = train.catalog.users[int(np.argmax(train.all_items.count_U))]
        if not available:
            raise DataError(
                f"{self.data_name}: user {user} has all {len(train.catalog.items):,} items, so there is none to "
                "compare a held-out one with. Leave that user out, or give more items."
            )
        # All samples must have the same number of candidates, so the user with the fewest decides for all.
        log.warning(
            "dataset.sampled_negatives=%d: of %s items user %s lacks only %d, so metrics whose names end in _sampled "
            "compare with %d.",
            self.sampled_negatives,
            f"{len(train.catalog.items):,}",
            user,
            available,
            available,
        )

    def _num_sampled(self, source: Interactions) -> int:
        """Returns `sampled_negatives`, at most the number of items that the user with the most items does not have."""
        return min(self.sampled_negatives, len(source.catalog.items) - int(source.all_items.count_U.max()))

    def _side_files(self, catalog: Catalog) -> List[Tuple[Union[SideFile, GivenFeatures], Sequence[str]]]:
        """Returns the tables of additional features, each with the ids of its users or items."""
        files = ((self.side_file("user"), catalog.users), (self.side_file("item"), catalog.items))
        return [(file, ids) for file, ids in files if file is not None]

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        if isinstance(splits.train, SequenceSamples):
            longest = int(splits.train.sequences.count_U.max())
            catalog = splits.train.catalog
            titles = self._titles_of(catalog)
            return RecommendationSignature(((min(self.max_history, longest),), ()), catalog=catalog, item_titles=titles)
        assert isinstance(splits.train, Interactions)
        num_candidates = 1 + self._num_sampled(splits.train) if self.feedback == "implicit" else 1
        catalog, mean = splits.train.catalog, list(splits.mean)
        titles = self._titles_of(catalog)
        if isinstance(model, Recommender):
            history: Tuple[Shape, ...] = ((self.max_history,), ()) if model.reads_history else ()
            return RecommendationSignature(
                ((), (num_candidates,), *history), mean=mean, catalog=catalog, item_titles=titles
            )
        columns = {file.side: file.measure(ids) for file, ids in self._side_files(catalog)}
        signature = RecommendationSignature(
            (),
            mean=mean,
            catalog=catalog,
            user_columns=columns.get("user"),
            item_columns=columns.get("item"),
            item_titles=titles,
        )
        fields = signature.recommender_fields
        if sum(fields.sizes) > MAX_COUNT:
            raise ConfigError(
                f"dataset: users, items and their features have {sum(fields.sizes):,} ids together, and MXNet 1.9.1 "
                f"counts to {MAX_COUNT:,}. Choose fewer buckets, or a larger min_count."
            )
        return replace(signature, shape=fields.shapes(num_candidates))

    def _titles_of(self, catalog: Catalog) -> Sequence[str]:
        """Returns the title of each item of a catalog; empty if no item has one."""
        title_of = self.item_titles()
        titles = [title_of.get(known_spelling(item, title_of), "") for item in catalog.items]
        if any(titles):
            return titles
        if title_of:
            log.warning(
                "Predictions have no titles: the ids of items in the file of titles (such as '%s') are none of the "
                "data's (such as '%s'), or their titles are empty",
                next(iter(title_of)),
                catalog.items[0],
            )
        return ()

    def join(self, signature: Signature) -> JoinedRows:
        """Reads the feature tables and returns the features of all users and items.

        Raises:
            DataError: a table cannot be read.
        """
        signature = RecommendationSignature.cast(signature)
        features = self._features(signature)
        return join_rows(signature.recommender_fields, features.get("user"), features.get("item"))

    def _features(self, signature: RecommendationSignature) -> Dict[str, Features]:
        """Returns the features that the network was trained with: "user" or "item" -> features."""
        features = {}
        for side, ids in (("user", signature.catalog.users), ("item", signature.catalog.items)):
            columns = signature.user_columns if side == "user" else signature.item_columns
            if columns is None:
                continue
            file = self.side_file(side)
            if file is None:
                raise DataError(f"The network was trained with features of {side}s. Type dataset.{side}_features=FILE.")
            features[side] = file.encode(columns, ids)
        return features

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        signature = RecommendationSignature.cast(signature)
        difference = signature.catalog.difference_from(RecommendationSignature.cast(before).catalog)
        if difference:
            raise CheckpointError(
                f"{source} was trained with other users or items: now there are {difference}. Name the data that it "
                f"was trained with, or choose another {run_dir_setting()}."
            )
        for side in ("user", "item"):
            if getattr(signature, f"{side}_columns") != getattr(before, f"{side}_columns"):
                raise CheckpointError(
                    f"{source} was trained with other features of {side}s. Give it the dataset.{side}_features that it "
                    f"was trained with, or choose another {run_dir_setting()}."
                )

    def remark(self, signature: Signature, splits: Splits) -> str:
        signature = RecommendationSignature.cast(signature)
        train = splits.train
        if isinstance(train, SequenceSamples):
            return _remark_sequences(train, len(splits.val))
        assert isinstance(train, Interactions)
        users, items, count = len(train.catalog.users), len(train.catalog.items), len(train.all_items)
        columns = [side for side in (signature.user_columns, signature.item_columns) if side is not None]
        features = ", ".join(column.name for side in columns for column in side.columns)
        return (
            f"{count:,} interactions of {users:,} users with {items:,} items, {len(splits.val):,} held out for "
            f"validation and {len(splits.test or ()):,} for testing"
            f"{f'; further features: {features}' if features else ''}"
        )

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: Union[Interactions, SequenceSamples], signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        if isinstance(source, SequenceSamples):
            return self._sequence_loader(source, signature, options)
        from mxtrain.recommendation.loader import InteractionLoader

        self._require_same_catalog(source.catalog, signature)
        num_negatives = None
        if self.feedback == "implicit":
            num_negatives = self.negatives if options.train else self._num_sampled(source)
        # Inputs of a `Recommender` are the user, (), and candidates, (C,), then maybe the history, (H,), and its
        # length, (). Other networks take joined features instead: ids and maybe numbers. See `infer_signature`.
        max_history = signature.shape[2][0] if len(signature.shape) > 2 else 0  # type: ignore[index]  # one of several
        takes_features = signature.shape[0] != ()
        joined = self.join(signature) if takes_features else None
        return InteractionLoader(
            source,
            options,
            num_negatives=num_negatives,
            max_history=max_history,
            split_seed=self.split_seed,
            joined=joined,
        )

    def _sequence_loader(self, source: SequenceSamples, signature: Signature, options: LoaderOptions) -> BatchLoader:
        from mxtrain.recommendation.sequence_loader import SequenceLoader

        width: int = signature.shape[0][0]  # type: ignore[index]  # one of several
        return SequenceLoader(source, options, width, self.negatives if self._has_sampled_loss else 0, self.split_seed)

    def _require_same_catalog(self, catalog: Catalog, signature: Signature) -> None:
        difference = catalog.difference_from(RecommendationSignature.cast(signature).catalog)
        if difference:
            raise DataError(
                f"{self.data_name} is not what the network was trained on: {difference}. Name the right data with "
                "dataset=..., or train anew."
            )

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`. The export holds the settings that choose items of long histories, and two files
        with the features of all users and all items."""
        if self._is_ordered:
            return DatasetExport("mxtrain.recommendation.exported_sequences")
        features = self._features(RecommendationSignature.cast(signature)).items()
        arrays = {features_file(side): {IDS: id_EF, NUMBERS: number_EM} for side, (id_EF, number_EM) in features}
        facts: Dict[str, Json] = {"max_history": self.max_history, "split_seed": self.split_seed}
        return DatasetExport(signature.exported_reader, facts, arrays)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens the users whose ids are in the files, one per line, or all users; a source location is `file:line`.

        The items of these users are read from the dataset, which must be the training data of the network. For
        sequences, a .jsonl file holds histories instead, and a table in the form of the training data the interactions
        of any users.
        """
        if self._is_ordered and names and all(name.lower().endswith(JSON_LINES) for name in names):
            return open_histories(names, RecommendationSignature.cast(signature).catalog, skip_unreadable, unreadable)
        tables = [self.for_file(name) for name in names] if self._is_ordered else []
        if tables and all(tables):
            catalog = RecommendationSignature.cast(signature).catalog
            rows = [table.read(STRICT) for table in tables if table is not None]
            return histories_of_tables(names, rows, catalog, skip_unreadable, unreadable)
        # Checkpoints do not store the items of users: for 20 million ratings, that would be a copy of the data.
        train = self._open_trained(signature)
        user_of = train.catalog.user_of
        users: List[int] = []
        locations: List[str] = []
        for name in names:
            if name == ALL and not exists(name):
                users += range(len(user_of))
                locations += [f"{ALL}:{number}" for number in range(1, len(user_of) + 1)]
                continue
            for line, given in _lines(name):
                user = known_spelling(given, user_of)
                if user not in user_of:
                    reason = f"{name}, line {line}: there is no user '{user}'.{did_you_mean(user, list(user_of))}"
                    if not skip_unreadable:
                        raise DataError(f"{reason} Or type skip_unreadable=true to go on without such users.")
                    unreadable[len(users)] = reason
                users.append(user_of.get(user, 0))
                locations.append(f"{name}:{line}")
        return train.for_users(np.array(users, np.int32)), locations

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns users to recommend for, whose items are read from the dataset: dicts with the id as "user", or a data
        frame of pandas with such a column. For sequences, dicts with a "history" as well."""
        if self._is_ordered and all(isinstance(one, dict) and HISTORY in one for one in as_list(value)):
            return histories_from(as_list(value), RecommendationSignature.cast(signature).catalog)
        rows = rows_from(value, 'dicts such as {"user": ID}, and paths of files of ids')
        train = self._open_trained(signature)
        users = []
        for number, (given,) in given_rows(rows, ["user"]):
            user = known_spelling(given, train.catalog.user_of)
            if user not in train.catalog.user_of:
                raise DataError(
                    f"predict: input {number}: there is no user '{user}'."
                    f"{did_you_mean(user, list(train.catalog.user_of))}"
                )
            users.append(train.catalog.user_of[user])
        return train.for_users(np.array(users, np.int32))

    def _open_trained(self, signature: Signature) -> Union[Interactions, SequenceSamples]:
        """Opens the training data of the network.

        Raises:
            DataError: the data have other users or items than in training.
        """
        train = open_splits(self).train
        assert isinstance(train, (Interactions, SequenceSamples))
        self._require_same_catalog(train.catalog, signature)
        return train


def _remark_sequences(train: SequenceSamples, num_measured: int) -> str:
    count_U = train.sequences.count_U
    few = int(((count_U < MIN_INTERACTIONS) & (count_U > 0)).sum())
    text = (
        f"{len(train.sequences.item_P):,} interactions of {len(train.catalog.users):,} users with "
        f"{len(train.catalog.items):,} items in order: {len(train):,} next items to train on; the last but one of "
        f"{num_measured:,} users is for validation and the last for testing"
    )
    return text + (f"; {few:,} users have fewer than {MIN_INTERACTIONS} and are only trained on" if few else "")


def _warn_about_spellings(side: str, names: Sequence[str]) -> None:
    """Warns about ids such as 1 and 1.0, which count as two different ids."""
    floats = [name for name in names if name.endswith(".0")]
    ids = set(names) if floats else set()
    duplicate = next((name for name in floats if whole_number(name) in ids), None)
    if duplicate is not None:
        log.warning(
            "%s '%s' and '%s' count as different: write the ids of all rows in the same form.",
            side,
            whole_number(duplicate),
            duplicate,
        )


def _check(file: Union[SideFile, GivenFeatures], ids: Sequence[str], findings: Findings) -> None:
    file.read([(column.name, column.read_kind) for column in file.column_settings()], ids, findings, logs=True)


def _lines(name: str) -> List[Tuple[int, str]]:
    if not exists(name):
        raise DataError(f"{name}: there is no such file. Name a file of user ids, one a line, or type {ALL}.")
    with open_text(name, None) as lines:
        return [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
