"""Files of libsvm and libffm: ids and values line by line, the machine's formula over them, and what is found wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pytest

from mxtrain.errors import DataError
from mxtrain.tables.libsvm import Libsvm
from mxtrain.types.kinds import Number, RowClass

pytestmark = pytest.mark.usefixtures("own_cache")

Line = Tuple[int, List[Tuple[int, float]]]


def lines_of(count: int, seed: int = 0) -> List[Line]:
    draw = np.random.RandomState(seed)
    rows = []
    for _ in range(count):
        ids = draw.permutation(np.arange(1, 30))[: draw.randint(1, 8)]
        rows.append((int(draw.randint(2)), [(int(one), round(float(draw.randn()), 3)) for one in ids]))
    return rows


def write(path: Path, rows: List[Line], negative: str = "-1", fields: bool = False) -> str:
    text = [
        " ".join([("+1" if label else negative), *(f"{'7:' * fields}{one}:{value}" for one, value in pairs)])
        for label, pairs in rows
    ]
    path.write_text("# a remark\n\n" + "\n".join(text) + "\n")
    return str(path)


def expected(rows: List[Line], length: int, num_ids: int) -> Any:
    ids, values = np.zeros((len(rows), length), int), np.zeros((len(rows), length))
    for row, (_, pairs) in enumerate(rows):
        for place, (one, value) in enumerate(pairs[:length]):
            if one < num_ids:
                ids[row, place], values[row, place] = one, value
    return ids, values


@pytest.mark.parametrize("fields", [False, True])
@pytest.mark.parametrize("most", [None, 3])
def test_lines_become_ids_and_values(tmp_path: Path, fields: bool, most: Any) -> None:
    rows = lines_of(100)
    test = [*lines_of(20, 1), (1, [(1000, 2.0), (5, 1.5)])]  # no training row has the first
    dataset = Libsvm(
        train=write(tmp_path / "a.txt", rows, "0", fields), test=write(tmp_path / "b.txt", test), max_features=most
    )
    splits = dataset.open()
    signature = dataset.infer_signature(splits, None)  # type: ignore[arg-type]
    columns, train = signature.columns, splits.train
    kept = [rows[number] for number in train.row_N]  # type: ignore[attr-defined]
    longest = max(len(pairs) for _, pairs in kept)
    length, num_ids = most or longest, 1 + max(one for _, pairs in kept for one, _ in pairs[:most])
    assert columns is not None and signature.shape == ((length,), (length,)) and columns.num_indices == num_ids
    for source, own in ((train, kept), (splits.test, test)):
        encoder = source.build_encoder(columns)  # type: ignore[attr-defined, union-attr]
        found = encoder.inputs(source, np.arange(len(own)))
        ids, values = expected(own, length, num_ids)
        assert found[0].dtype == np.int32 and (found[0] == ids).all()
        np.testing.assert_allclose(found[1], values, rtol=1e-6)
        assert source.read_labels().tolist() == [label for label, _ in own]  # type: ignore[attr-defined, union-attr]
        dense = np.zeros((len(own), num_ids))
        for row in range(len(own)):
            np.add.at(dense[row], ids[row], values[row])
        np.testing.assert_allclose(encoder.design(source, np.arange(len(own))).toarray(), dense, rtol=1e-6)


@pytest.mark.parametrize("units", [0, 3])
def test_the_network_is_the_formula_over_all_values(units: int) -> None:
    from mxtrain.engine.backend import nd
    from mxtrain.model.prepare import prepare_network
    from mxtrain.tables.feature_models import FactorizationMachine

    model = FactorizationMachine(units=units)
    network = prepare_network(
        model, num_classes=1, input_shape=((8,), (8,)), seed=0, network=model.build_indexed(1, 30)
    ).network
    draw = np.random.RandomState(0)
    weights = {}
    for name, parameter in network._collect_params_with_prefix().items():
        weights[name] = draw.randn(*parameter.shape)
        parameter.set_data(nd.array(weights[name]))
    rows = lines_of(10)
    ids, values = expected(rows, 8, 30)
    found = network(nd.array(ids, dtype="int32"), nd.array(values)).asnumpy()
    for row, (_, pairs) in enumerate(rows):
        x = np.zeros(30)
        for one, value in pairs:
            x[one] = value
        score = float(weights["bias"]) + float(x @ weights["linear.weight"])
        if units:
            product = weights["vectors.weight"] @ weights["vectors.weight"].T
            score += sum(product[i, j] * x[i] * x[j] for i in range(30) for j in range(i + 1, 30))
        assert found[row, 0] == pytest.approx(score, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    "line, words",
    [
        ("2 1:1", "line 5: the target is '2'; allowed are '0', '1' and '-1'. Correct or remove it, or name all cl"),
        ("1:1 2:1", "line 5: the target is '1:1', which is no finite number. Correct or remove it."),
        ("1e999 2:1", "line 5: the target is '1e999', which is no finite number."),
        ("1 1:1 two:2", "line 5: 'two:2' is no index:value, and no field:index:value."),
        ("1 1:1 2", "line 5: '2' is no index:value"),
        ("1 1:x", "line 5: '1:x' is no index:value"),
        ("1 1:2:3:4", "line 5: '1:2:3:4' is no index:value"),
        ("1 2147483648:1", "line 5: the index 2147483648 is not from 0 to 2,147,483,646."),
        ("1 -3:1", "line 5: the index -3 is not from 0"),
        ("1 3:nan", "line 5: '3:nan' is no index:value"),
        ("1 3:1_0", "line 5: '3:1_0' is no index:value"),
        ("1 1_0:2", "line 5: '1_0:2' is no index:value"),
        ("1_0 3:1", "line 5: the target is '1_0'"),
        ("1 \u0663:1", "line 5: '\u0663:1' is no index:value"),
        ("1 3:1e39", "line 5: a value is no finite number of 32 bits."),
    ],
)
def test_lines_that_cannot_be_used_are_refused_and_listed(tmp_path: Path, check: Any, line: str, words: str) -> None:
    path = write(tmp_path / "t.txt", lines_of(60))
    text = Path(path).read_text().splitlines()
    text[4] = line
    Path(path).write_text("\n".join(text))
    with pytest.raises(DataError, match=words):
        Libsvm(train=path).open()
    kind = "label_range" if "target" in words else "unreadable_row"
    assert check(Libsvm(train=path)) == [(kind, "t.txt", 5)]
    assert sum(check.census.num_samples.values()) == 59


def labels_of(path: Path, targets: List[str], **given: Any) -> Tuple[List[str], List[Any]]:
    path.write_text("".join(f"{target} 1:{n}\n" for n, target in enumerate(targets)))
    dataset = Libsvm(train=str(path), val_fraction=0.1, test_fraction=0.0, **given)
    splits = dataset.for_run(Number if given.pop("number", False) else RowClass).open()
    stores = splits.train.stores  # type: ignore[attr-defined]
    return list(splits.class_names), np.concatenate([store.label_R for store in stores]).tolist()


@pytest.mark.parametrize(
    "targets, names",
    [
        (["-1", "+1"], ["0", "1"]),
        (["0", "1.0"], ["0", "1"]),
        (["1", "1"], ["0", "1"]),
        (["2", "1"], ["1", "2"]),
        (["-1", "0"], ["-1", "0"]),
        (["-1", "2"], ["-1", "2"]),
        (["1", "0", "-1"], ["-1", "0", "1"]),
        (["10", "9", "1e1", "+3"], ["3", "9", "10"]),
    ],
)
def test_classes_are_the_targets_of_all_lines(tmp_path: Path, targets: List[str], names: List[str]) -> None:
    """-1 is 0 of the classes 0 and 1, and a class of its own beside 0."""
    labels = [names.index(f"{float(target):g}" if f"{float(target):g}" in names else "0") for target in targets]
    # Sorted, so that the first lines do not have all classes.
    assert labels_of(tmp_path / "a.txt", [target for target in targets for _ in range(600)]) == (
        names,
        [label for label in labels for _ in range(600)],
    )


def test_given_classes_and_other_targets(tmp_path: Path) -> None:
    targets = ["3", "1", "2"] * 10
    assert labels_of(tmp_path / "a.txt", targets, classes=[3, 1, "2.0"]) == (["3", "1", "2.0"], [0, 1, 2] * 10)
    with pytest.raises(DataError, match="line 3: the target is '2'; allowed are '1' and '3'. .*in dataset.classes"):
        labels_of(tmp_path / "a.txt", targets, classes=[1, 3])
    with pytest.raises(DataError, match="a.txt: the target has 3 values: '0.5', '1.5', '2'. Type task=regression"):
        labels_of(tmp_path / "a.txt", ["0.5", "1.5", "2"] * 10)
    with pytest.raises(DataError, match="a.txt: the target has more than 1,000 values: '1000', '1001', .*=regression"):
        labels_of(tmp_path / "a.txt", [str(n) for n in range(2000, 0, -1)])  # counted up to the 1,001st value
    with pytest.raises(DataError, match="a.txt: the target has 1 value: '7'. There is nothing to tell apart"):
        labels_of(tmp_path / "a.txt", ["7"] * 10)
    for wrong in (["1", "1.0"], ["1", "yes"]):
        with pytest.raises(ValueError, match="must be different numbers"):
            Libsvm(train="a.txt", classes=wrong)


def test_targets_of_regression_are_the_numbers(tmp_path: Path, check: Any) -> None:
    from mxtrain.errors import ConfigError

    path = tmp_path / "a.txt"
    path.write_text("".join(f"{n}.5 1:{n}\n" for n in range(40)))
    dataset = Libsvm(train=str(path)).for_run(Number)
    splits = dataset.open()
    signature = dataset.infer_signature(splits, None)  # type: ignore[arg-type]
    target_N = splits.train.read_labels()  # type: ignore[attr-defined]
    assert (target_N == splits.train.row_N + 0.5).all() and list(splits.class_names) == []  # type: ignore[attr-defined]
    assert signature.target_mean == pytest.approx(target_N.mean())
    path.write_text(path.read_text() + "inf 1:1\nyes 1:1\n")
    with pytest.raises(DataError, match="line 41: the target is 'inf', which is no finite number. Correct or remove"):
        dataset.open()
    assert check(dataset) == [("label_range", "a.txt", 41), ("label_range", "a.txt", 42)]
    with pytest.raises(ConfigError, match="task=regression predicts a number"):
        Libsvm(train=str(path), classes=[0, 1]).for_run(Number)


@pytest.mark.parametrize("task", ["tabular", "regression"])
def test_trained_dataset_needs_no_training_rows(tmp_path: Path, task: str) -> None:
    """Classes are those of the checkpoint, and targets of lines to predict for may be others, or none."""
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{n % 3} 1:{n}\n" for n in range(60)))
    dataset = Libsvm(train=str(path)).for_run(Number if task == "regression" else RowClass)
    signature = dataset.infer_signature(dataset.open(), None)  # type: ignore[arg-type]
    path.unlink()
    restored, _ = dataset.restored(signature, (), "run")
    names = ("0", "1", "2") if task == "tabular" else ()
    assert restored.class_names() == names == tuple(signature.class_names)  # type: ignore[attr-defined]
    assert restored.classes == (list(names) or "auto")  # type: ignore[attr-defined]
    new = tmp_path / "new.txt"
    new.write_text("2 1:1\n1:1\n7 1:1\nnan 1:1\n")
    source, places = restored.open_inputs([str(new)], signature, False, {})
    found = source.read_labels()  # type: ignore[attr-defined]
    expected = [2, -1, -1, -1] if task == "tabular" else [2.0, np.nan, 7.0, np.nan]
    np.testing.assert_array_equal(found, np.array(expected))
    assert list(places) == [f"{new}:{line}" for line in (1, 2, 3, 4)]


def test_huge_index_and_row_need_a_setting(tmp_path: Path) -> None:
    def features(name: str, long: List[Tuple[int, float]], **given: int) -> Any:
        path = write(tmp_path / name, [*lines_of(30), (1, long), *lines_of(30)])
        others = {"val": write(tmp_path / "v.txt", lines_of(9)), "test": write(tmp_path / "w.txt", lines_of(9, 1))}
        dataset = Libsvm(train=path, **others, **given)  # type: ignore[arg-type]
        return dataset.infer_signature(dataset.open(), None)  # type: ignore[arg-type]

    with pytest.raises(DataError, match=r"line 33 has the index 100,000,000. .*dataset.max_index=100000000"):
        features("t.txt", [(100_000_000, 1.0)])
    assert features("t.txt", [(100_000_000, 1.0)], max_index=100_000_000).columns.num_indices == 100_000_001
    with pytest.raises(DataError, match=r"line 33 has 10,001 features, .*dataset.max_features=10001"):
        features("u.txt", [(one, 1.0) for one in range(10_001)])
    assert features("u.txt", [(one, 1.0) for one in range(10_001)], max_features=10_001).shape[0] == (10_001,)


@pytest.mark.slow
def test_lines_to_predict_for_need_no_target(tmp_path: Path, train_run: Any, capsys: Any) -> None:
    from mxtrain.cli import main

    rows = lines_of(120)
    train_run(
        "task=tabular",
        "dataset=libsvm",
        f"dataset.train={write(tmp_path / 'a.txt', rows)}",
        "model=factorization_machine",
        "trainer.max_epochs=1",
    )
    bare = "\n".join(" ".join(f"{one}:{value}" for one, value in pairs) for _, pairs in rows[:5])
    (tmp_path / "bare.txt").write_text("# a remark\n\n" + bare + "\n")
    write(tmp_path / "whole.txt", rows[:5])
    outputs = []
    for name in ("bare.txt", "whole.txt"):
        capsys.readouterr()
        assert main(["predict", str(tmp_path / "run"), f"{tmp_path}/{name}"]) == 0
        outputs.append(capsys.readouterr().out.replace(name, ""))
    assert outputs[0] == outputs[1] and len(outputs[0].splitlines()) == 5
    assert outputs[0].startswith(f'{{"file": "{tmp_path}/:3", ')  # the line that messages name
