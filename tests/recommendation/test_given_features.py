"""Files of users and items of MovieLens and RecBole: features, interactions, and damaged files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from mxtrain.cli.dispatch import run
from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.errors import DataError
from mxtrain.recommendation.atomic_files import AtomicFiles
from mxtrain.recommendation.given_features import GivenFeatures
from mxtrain.recommendation.kinds import NextItem
from mxtrain.recommendation.movielens import MovieLens

pytestmark = pytest.mark.usefixtures("own_cache")
FLAGS = "|".join("1" if place in (3, 5) else "0" for place in range(19))  # animation and comedy
USERS: Dict[str, bytes] = {
    "u.user": b"1|24|M|technician|85711\n2|53|F|other|94043\n",
    "users.dat": b"1::F::1::10::48067\n2::M::56::16::70072-1234\n",
}
FILMS: Dict[str, bytes] = {
    "u.item": f"1|Toy Story (1995)|01-Jan-1995||http://x|{FLAGS}\n2|unknown||||{'1' + '|0' * 18}\n".encode(),
    "movies.dat": "1::Misérables, Les (1995)::Drama|Musical\n2::Jumanji: X (1996)::Comedy\n".encode("latin-1"),
    "movies.csv": b'movieId,title,genres\n1,"Heat, a (1995)",Action|Crime\n2,Alien,(no genres listed)\n',
}


def features_of(root: Path, side: str) -> GivenFeatures:
    found = MovieLens(root=str(root), features=True).side_file(side)
    assert isinstance(found, GivenFeatures)
    return found


def write_ratings(root: Path) -> None:
    lines = [f"{user}\t{item}\t3\t{user * 10 + item}" for user in (1, 2, 3) for item in range(user, user + 4)]
    (root / "u.data").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", USERS)
def test_users_of_movielens(name: str, tmp_path: Path) -> None:
    write_ratings(tmp_path)
    (tmp_path / name).write_bytes(USERS[name])
    found = features_of(tmp_path, "user")
    old = name == "u.user"
    assert dict(found.kinds) == {
        "age": "number" if old else "category",
        "gender": "category",
        "occupation": "category",
        "zip": "hashed",
    }
    first = {"age": "24", "gender": "M", "occupation": "technician", "zip": "85711"}
    assert found.rows["1"] == (first if old else {"age": "1", "gender": "F", "occupation": "10", "zip": "48067"})
    columns = found.measure(["2", "9", "1"])
    id_EF, number_EM = found.encode(columns, ["2", "9", "1"])
    assert id_EF.shape == (3, 3 if old else 4) and len({tuple(row) for row in id_EF.tolist()}) == 3
    if old:
        assert number_EM[:, 0] == pytest.approx([1, 0, -1])


@pytest.mark.parametrize("name", FILMS)
def test_films_of_movielens(name: str, tmp_path: Path, caplog: Any) -> None:
    write_ratings(tmp_path)
    (tmp_path / name).write_bytes(FILMS[name])
    with caplog.at_level(logging.INFO):
        found = features_of(tmp_path, "item")
    genres = {
        "u.item": (["Animation", "Comedy", "unknown"], ["Animation", "Comedy"], "1995", ""),
        "movies.dat": (["Comedy", "Drama", "Musical"], ["Drama", "Musical"], "1995", "1996"),
        "movies.csv": (["Action", "Crime"], ["Action", "Crime"], "1995", ""),
    }[name]
    assert list(found.kinds) == ["year", *(f"genre={one}" for one in genres[0])]
    assert [found.rows["1"][f"genre={one}"] for one in genres[0]] == [str(int(one in genres[1])) for one in genres[0]]
    assert (found.rows["1"]["year"], found.rows["2"]["year"]) == genres[2:]
    assert any("read as Latin-1" in message for message in caplog.messages) == (name == "movies.dat")


@pytest.mark.parametrize(
    "name, content, said",
    [
        (
            "u.user",
            b"1|24|M|x|85711\n2|53|F|other\n",
            "u.user, line 2: it has 4 columns between '|', and 5",
        ),
        ("u.user", b"1|24|M|x|85711\n1|53|F|x|9\n", "u.user, line 2: user 1 has a row before."),
        ("u.user", b"1|old|M|x|85711\n", "u.user, line 1: its age 'old' is no number."),
        ("u.user", b"1|1e39|M|x|85711\n", "line 1: its age '1e39' is no number."),
        ("u.user", b" |24|M|x|85711\n", "u.user, line 1: the id of its user is empty."),
        ("u.user", b"", "u.user: none of 3 users has a row in it."),
        ("u.user", b"77|24|M|x|85711\n", "u.user: none of 3 users has a row in it."),
        ("movies.dat", b"1::a (1990)\n", "movies.dat, line 1: it has 2 columns between '::', and 3 are needed."),
        ("movies.csv", b"movieId,title\n1,a\n", "genres"),
        ("u.item", b"1|a|b|c\n", "u.item, line 1: it has 4 columns between '|', and 24 are needed."),
    ],
)
def test_damaged_feature_files_are_refused(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    write_ratings(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        features_of(tmp_path, "user" if "user" in name else "item").measure(["1", "2", "3"])
    assert said in str(error.value)


INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
PAIRS = [(user, step) for user in range(4) for step in range(4)]
ROWS = "".join(f"u{user}\ti{(user + step) % 5}\t{step + 1}\t{86400 * (9 - step)}\n" for user, step in PAIRS)
ITEM = "item_id:token\tprice:float\tclass:token_seq\tvector:float_seq\tshop:token\n"


def write_atomic(root: Path, **more: str) -> None:
    files = {"inter": INTER + ROWS, "item": ITEM + "i0\t2.5\ta b\t1 2\ts\ni1\t\tb\t3\tt\n", **more}
    for ending, text in files.items():
        (root / f"x.{ending}").write_text(text)


def test_atomic_files_have_interactions_and_features(tmp_path: Path) -> None:
    write_atomic(tmp_path)
    for root in (tmp_path, tmp_path / "x.inter"):
        dataset = AtomicFiles(root=str(root), features=True, sampled_negatives=1)
        pairs = dataset.read(CollectedFindings())
        assert len(pairs.user_P) == 16 and pairs.catalog.users == ("u0", "u1", "u2", "u3")
        assert pairs.rating_P[:4].tolist() == [1, 2, 3, 4] and pairs.time_P is not None
        assert pairs.time_P[0] == 9 * 86400 and pairs.locations[0].line == 2
        found = dataset.side_file("item")
        assert isinstance(found, GivenFeatures) and dataset.side_file("user") is None
        assert dict(found.kinds) == {
            "price": "number",
            "class=a": "category",
            "class=b": "category",
            "shop": "category",
        }
        assert found.rows["i0"] == {"price": "2.5", "class=a": "1", "class=b": "1", "shop": "s"}
    ordered: Any = AtomicFiles(root=str(tmp_path)).for_run(NextItem).open()
    assert [ordered.test.catalog.items[item] for item in ordered.test.item_N] == ["i0", "i1", "i2", "i3"]


def test_sequences_need_times(tmp_path: Path) -> None:
    write_atomic(tmp_path, inter="user_id:token\titem_id:token\n" + "".join(f"u\ti{item}\n" for item in range(5)))
    with pytest.raises(DataError, match="it lacks the field 'timestamp' that this run needs. It has user_id, item_id."):
        AtomicFiles(root=str(tmp_path)).for_run(NextItem).open()


def test_sets_of_too_many_values_are_left_out(tmp_path: Path, caplog: Any) -> None:
    words = " ".join(f"w{number}" for number in range(101))
    write_atomic(tmp_path, item=f"item_id:token\tclass:token_seq\tshop:token\ni0\t{words}\ts\n")
    found = AtomicFiles(root=str(tmp_path), features=True).side_file("item")
    assert found is not None and list(found.kinds) == ["shop"]  # type: ignore[union-attr]
    assert "class is ignored, because it has more than 100 values" in caplog.text


@pytest.mark.parametrize(
    "files, settings, said",
    [
        ({"inter": ""}, {}, "x.inter, line 1: '' is no NAME:TYPE, such as user_id:token."),
        ({"inter": "user_id\titem_id\n"}, {}, "line 1: 'user_id' is no NAME:TYPE"),
        ({"inter": "user_id:text\titem_id:token\n"}, {}, "Types are token, float, token_seq, float_seq."),
        ({"inter": "a:token\ta:token\n"}, {}, "line 1: the field 'a' is there twice."),
        ({"inter": "usr_id:token\titem_id:token\n"}, {}, "has no such field. Did you mean 'usr_id'?"),
        ({"inter": INTER}, {}, "there is no interaction in it"),
        ({"inter": INTER + "u\ti\t3\n"}, {}, "x.inter, line 2: it has 3 columns between tabs, and 4 are needed."),
        ({"inter": INTER + "u\ti\t3\tnoon\n"}, {}, "x.inter, line 2: its timestamp 'noon' is no number"),
        ({"inter": INTER + "\ti\t3\t1\n"}, {}, "x.inter, line 2: its user is empty."),
        ({"inter": "user_id:token\titem_id:token\nu\ti\n"}, {"min_rating": 3}, "it lacks the field 'rating'"),
        ({"item": "id:token\nx\n"}, {"features": True}, "x.item: it has no field 'item_id'."),
        ({"item": ITEM + "i0\tx\ta\t1\ts\n"}, {"features": True}, "x.item, line 2: its price 'x' is no number."),
        ({"item": ITEM + "i0\t1\n"}, {"features": True}, "x.item, line 2: it has 2 columns between tabs"),
        ({}, {"root": "none"}, "there is no such folder"),
        ({}, {"root": "none.inter"}, "there is no such file"),
    ],
)
def test_damaged_atomic_files_are_refused(files: Any, settings: Any, said: str, tmp_path: Path) -> None:
    write_atomic(tmp_path, **files)
    dataset = AtomicFiles(**{"root": str(tmp_path), **settings})
    with pytest.raises(DataError) as error:
        dataset.open()
        dataset.side_file("item")
    assert said in str(error.value)


def test_several_files_are_refused_and_other_bytes_named(tmp_path: Path) -> None:
    write_atomic(tmp_path)
    (tmp_path / "y.inter").write_text("")
    with pytest.raises(DataError, match=r"one \.inter file is needed, not x.inter, y.inter. Name the file."):
        AtomicFiles(root=str(tmp_path)).open()
    (tmp_path / "y.inter").write_bytes(INTER.encode() + b"u\ti\xe9\t3\t1\n")
    with pytest.raises(DataError, match=r"y\.inter, line 2"):
        AtomicFiles(root=str(tmp_path / "y.inter")).open()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["movielens", "recbole"])
def test_networks_learn_and_predict_with_these_features(source: str, tmp_path: Path, capsys: Any) -> None:
    draw = np.random.RandomState(0)
    pairs = [(user, item) for user in range(1, 31) for item in draw.permutation(20)[:6] + 1]
    (tmp_path / "x").mkdir()
    if source == "movielens":
        (tmp_path / "x" / "u.data").write_text("".join(f"{user}\t{item}\t3\t{item}\n" for user, item in pairs))
        lines = [f"{item}|Film {item} (19{70 + item})|||x|{FLAGS}" for item in range(1, 21)]
        (tmp_path / "x" / "u.item").write_text("\n".join(lines) + "\n")
    else:
        rows = "".join(f"{user}\t{item}\t3\t{item}\n" for user, item in pairs)
        items = "".join(f"{item}\t{item / 2}\ta b\t1\ts{item % 3}\n" for item in range(1, 21))
        write_atomic(tmp_path / "x", inter=INTER + rows, item=ITEM + items)
    words: List[str] = [f"dataset={source}", f"dataset.root={tmp_path}/x", "dataset.features=true"]
    small = ["dataset.sampled_negatives=3", "trainer.max_epochs=1", "model.units=4", f"hydra.run.dir={tmp_path}/run"]
    assert run([*words, "task=recommendation", "model=factorization_machine", *small]) == 0
    log = (tmp_path / "run" / "train.log").read_text()
    assert "20 of 20 items have a row" in log
    assert ("genre=Animation" if source == "movielens" else "price, class=a") in log
    assert run(["predict", f"{tmp_path}/run", "all", "top_k=2"]) == 0
    capsys.readouterr()
    assert run([*words, "task=sequential_recommendation"]) == 2
    assert "dataset.features: networks of sequences read no features" in capsys.readouterr().err
    assert run([*words, "task=recommendation"]) == 2
    assert "dataset.features: ItemFactors knows users and items by their ids" in capsys.readouterr().err
