"""Damaged files of interactions, users and items of MovieLens and RecBole, for recommendation of any kind."""

from __future__ import annotations

from typing import List

from damage import Case, cut, damaged, emptied, in_latin1, in_utf16, kind_of_fuzz, removed, replaced

SEQUENCES, OLD, NEW = "sequences of MovieLens 100K", "MovieLens 100K with features", "MovieLens 1M with features"
LATEST, RECBOLE, ATOMIC = "MovieLens 25M", "sequences of RecBole", "RecBole with features"

for _kind, _name in {
    SEQUENCES: "movielens 100k, sequences",
    OLD: "movielens 100k, features",
    NEW: "movielens 1m, features",
    LATEST: "movielens csv, sequences",
    RECBOLE: "recbole, sequences",
    ATOMIC: "recbole, features",
}.items():
    kind_of_fuzz(_kind, _name)

CASES: List[Case] = [
    damaged(
        SEQUENCES,
        "it is cut off",
        "u.data",
        cut(-6),
        "u.data, line 45: it has 3 columns between tabs, and 4 are needed",
    ),
    damaged(SEQUENCES, "it is empty", "u.data", emptied, "u.data: there is no interaction in it."),
    damaged(
        SEQUENCES,
        "it is in UTF-16",
        "u.data",
        in_utf16,
        "u.data is in UTF-16, not UTF-8",
    ),
    damaged(SEQUENCES, "it is missing", "u.data", removed, "there is none of ratings.csv, u.data, ratings.dat in it"),
    damaged(
        SEQUENCES,
        "a time is nan",
        "u.data",
        replaced("\t101\n", "\tnan\n"),
        "u.data, line 6: its timestamp nan is no finite number that a 32-bit float can be",
    ),
    damaged(
        SEQUENCES,
        "a time is 1e400",
        "u.data",
        replaced("\t101\n", "\t1e400\n"),
        "u.data, line 6: its timestamp 1e400 is no finite number that a 32-bit float can be",
    ),
    damaged(
        SEQUENCES,
        "a rating is a word",
        "u.data",
        replaced("\t3\t101\n", "\tgood\t101\n"),
        "u.data, line 6: its rating 'good' is no number",
    ),
    damaged(
        SEQUENCES,
        "an item is empty",
        "u.data",
        replaced("1\t1\t3\t101\n", "1\t\t3\t101\n"),
        "u.data, line 6: its item is empty",
    ),
    damaged(
        OLD, "users are cut off", "u.user", cut(-9), "u.user, line 9: it has 4 columns between '|', and 5 are needed"
    ),
    damaged(OLD, "users are empty", "u.user", emptied, "u.user: none of 9 users has a row in it."),
    damaged(
        OLD, "a user is listed twice", "u.user", replaced("1|21", "0|21"), "u.user, line 2: user 0 has a row before"
    ),
    damaged(OLD, "an age is nan", "u.user", replaced("1|21", "1|nan"), "u.user, line 2: its age 'nan' is no number"),
    damaged(
        OLD, "an age is 1e400", "u.user", replaced("1|21", "1|1e400"), "u.user, line 2: its age '1e400' is no number"
    ),
    damaged(
        OLD, "films are cut off", "u.item", cut(-9), "u.item, line 13: it has 20 columns between '|', and 24 are needed"
    ),
    damaged(
        OLD,
        "a flag is 2",
        "u.item",
        replaced("|1|", "|2|"),
        "u.item, line 1: the column of Animation holds '2', and 0 or 1 is needed",
    ),
    damaged(
        NEW,
        "ratings are cut off",
        "ratings.dat",
        cut(-6),
        "ratings.dat, line 45: it has 3 columns between '::', and 4 are needed",
    ),
    damaged(
        NEW,
        "users are cut off",
        "users.dat",
        cut(-9),
        "users.dat, line 9: it has 4 columns between '::', and 5 are needed",
    ),
    damaged(
        NEW,
        "users are in UTF-16",
        "users.dat",
        in_utf16,
        "users.dat is in UTF-16, not UTF-8",
    ),
    damaged(
        NEW,
        "a film is listed twice",
        "movies.dat",
        replaced("1::Film", "0::Film"),
        "movies.dat, line 2: item 0 has a row before",
    ),
    damaged(
        LATEST,
        "it is cut off",
        "ratings.csv",
        cut(-6),
        "ratings.csv, line 46: it has 3 columns, so there is none for 'timestamp'.",
    ),
    damaged(LATEST, "it is empty", "ratings.csv", emptied, "ratings.csv: there is no interaction in it."),
    damaged(
        LATEST,
        "it has another header",
        "ratings.csv",
        replaced("movieId", "film"),
        "ratings.csv, line 1: there is no column 'movieId'",
    ),
    damaged(
        LATEST,
        "a rating is nan",
        "ratings.csv",
        replaced("1,1,3,", "1,1,nan,"),
        "ratings.csv, line 7: its rating nan is no finite number that a 32-bit float can be",
    ),
    damaged(
        LATEST,
        "a rating is 1e400",
        "ratings.csv",
        replaced("1,1,3,", "1,1,1e400,"),
        "ratings.csv, line 7: its rating 1e400 is no finite number that a 32-bit float can be",
    ),
    damaged(
        LATEST,
        "a time is -1e400",
        "ratings.csv",
        replaced("1,1,3,101", "1,1,3,-1e400"),
        "ratings.csv, line 7: its timestamp -1e400 is no finite number that a 32-bit float can be",
    ),
    damaged(
        RECBOLE,
        "it is cut off",
        "x.inter",
        cut(-6),
        "x.inter, line 46: it has 3 columns between tabs, and 4 are needed",
    ),
    damaged(RECBOLE, "it is empty", "x.inter", emptied, "x.inter, line 1: '' is no NAME:TYPE, such as user_id:token"),
    damaged(
        RECBOLE,
        "it is in UTF-16",
        "x.inter",
        in_utf16,
        "x.inter is in UTF-16, not UTF-8",
    ),
    damaged(
        RECBOLE,
        "a field has no type",
        "x.inter",
        replaced("rating:float", "rating"),
        "x.inter, line 1: 'rating' is no NAME:TYPE, such as user_id:token",
    ),
    damaged(
        RECBOLE,
        "a field is there twice",
        "x.inter",
        replaced("rating:float", "user_id:token"),
        "x.inter, line 1: the field 'user_id' is there twice.",
    ),
    damaged(
        RECBOLE,
        "a rating is nan",
        "x.inter",
        replaced("1\t1\t3\t", "1\t1\tnan\t"),
        "x.inter, line 7: its rating nan is no finite number that a 32-bit float can be",
    ),
    damaged(
        RECBOLE,
        "a time is 1e400",
        "x.inter",
        replaced("\t101\n", "\t1e400\n"),
        "x.inter, line 7: its timestamp 1e400 is no finite number that a 32-bit float can be",
    ),
    damaged(
        ATOMIC,
        "users are cut off",
        "x.user",
        cut(-8),
        "x.user, line 10: it has 2 columns between tabs, and 3 are needed",
    ),
    damaged(
        ATOMIC,
        "users are in Latin-1",
        "x.user",
        in_latin1,
        "x.user, line 2 is no UTF-8: it holds the byte 0xe9",
    ),
    damaged(
        ATOMIC,
        "a user is listed twice",
        "x.user",
        replaced("1\t21", "0\t21"),
        "x.user, line 3: user 0 has a row before",
    ),
    damaged(
        ATOMIC,
        "an age is 1e400",
        "x.user",
        replaced("1\t21", "1\t1e400"),
        "x.user, line 3: its age '1e400' is no number",
    ),
    damaged(
        ATOMIC, "an age is a word", "x.user", replaced("1\t21", "1\told"), "x.user, line 3: its age 'old' is no number"
    ),
    damaged(ATOMIC, "items are empty", "x.item", emptied, "x.item, line 1: '' is no NAME:TYPE, such as user_id:token"),
]
