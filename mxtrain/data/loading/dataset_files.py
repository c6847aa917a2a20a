"""Reads files and folders of datasets: only regular files of limited size (`mxtrain.files.regular_files`), and each
real folder only once.

Pipes and devices have no end: /dev/zero would fill the memory, and a pipe without a writer would block for ever.

Reasons: docs/decisions/0027-data-validation.md.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import unicodedata
from contextlib import contextmanager
from pathlib import Path
from typing import (
    BinaryIO,
    Callable,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    STRICT,
    UNDECODABLE_TEXT,
    UNREADABLE_FILE,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.errors import DataError, did_you_mean, disk_advice
from mxtrain.files import regular_files
from mxtrain.files.regular_files import MAX_BYTES, AnyPath, PositionedFile, UnsuitableFile
from mxtrain.files.text_encoding import guess_encoding

FileId = Tuple[int, int]
"""Device and inode: the same for all names of a file or folder."""

SHOWN_NAMES = 12
_MAX_GUESSED_LINES = 200
"""Number of lines that are not UTF-8 by which their encoding is guessed."""
_BYTES_BEFORE, _SAMPLE_BYTES = 200, 4096
"""Bytes before the first invalid byte of such a line, and bytes in all, that are used."""
BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
GZIP_MAGIC = b"\x1f\x8b"
"""The first bytes of gzip files."""
_ARCHIVE = b"PK\x03\x04"
_TABLE_FORMATS = {
    b"PAR1": "a Parquet file, not a text. Datasets that read Parquet do so if the name ends in .parquet.",
    b"ARRO": "an Arrow file (Feather), not a text. Write it as Parquet or CSV.",
}
"""First four bytes of a binary table -> what it is, and what to do."""


def file_error(path: object, error: OSError, verb: str = "read") -> DataError:
    """Converts an `OSError` for a file or folder into a DataError with a readable message.

    Args:
        path: path of the file or folder.
        error: the error.
        verb: participle of what failed, "read" or "written". For a file that was written, a full disk adds advice.
    """
    name = str(path)
    name = name if len(name) <= 200 else f"{name[:100]}...{name[-40:]}"
    if isinstance(error, FileNotFoundError) and os.path.islink(str(path)) and verb == "read":
        return DataError(f"'{name}' is a link to nothing.")
    if isinstance(error, UnsuitableFile):
        return DataError(f"'{name}' {str(error.strerror).removeprefix('it ')}.")
    advice = disk_advice(error) if verb == "written" else ""
    return DataError(f"'{name}' cannot be {verb}: {error.strerror or error}.{advice}")


def read_bytes(path: AnyPath, at_most: int = MAX_BYTES) -> bytes:
    """Reads a regular file.

    Args:
        path: path of the file; links are followed.
        at_most: largest allowed size in bytes; a larger file is rejected before it is read.

    Raises:
        DataError: the file cannot be read, is not regular or too large.
    """
    try:
        return regular_files.read_regular(path, at_most)
    except OSError as error:
        raise file_error(path, error) from error


@contextmanager
def open_regular(path: AnyPath) -> Iterator[Tuple[BinaryIO, int]]:
    """Opens a regular file for reading; yields it and its size in bytes.

    Raises:
        DataError: the file cannot be opened or read, also later in the `with` block, or is not regular.
    """
    try:
        with regular_files.open_regular(path) as opened:
            yield opened
    except OSError as error:
        raise file_error(path, error) from error


def open_positioned(path: AnyPath) -> PositionedFile:
    """Opens a regular file of any size that is read by position.

    Raises:
        DataError: the file cannot be opened, or is not regular.
    """
    try:
        return regular_files.open_positioned(path)
    except OSError as error:
        raise file_error(path, error) from error


def _why_irregular(path: AnyPath, status: os.stat_result) -> str:
    """Returns why a file is not read; "" for a regular file."""
    kind = regular_files.irregular_kind(status)
    return f"'{path}' is {kind}, and only regular files are read." if kind else ""


def stream_reason(path: AnyPath) -> str:
    """Returns why a path to a pipe, a device or the like is not read; "" for all other paths, also missing ones."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ""
    return "" if stat.S_ISDIR(status.st_mode) else _why_irregular(path, status)


def read_text(path: AnyPath, findings: Findings = STRICT) -> str:
    """Reads a regular file in UTF-8. Keeps line ends and removes a byte order mark.

    Args:
        path: path of the file.
        findings: collects lines that are not UTF-8.

    Raises:
        DataError: the file cannot be read or is not UTF-8; the message names the line.
    """
    content = read_bytes(path)
    refuse_non_text(path, content[:4])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        findings.refuse(*undecodable_lines(path, content.split(b"\n")))
    return content.decode("utf-8-sig", "replace")


def refuse_non_text(path: AnyPath, begin: bytes) -> None:
    """Rejects files that are not UTF-8 text at all, by their first four bytes.

    Without this check the message would advise to correct single lines.

    Raises:
        DataError: the file is UTF-16, compressed, an archive or a binary table; the message says what to type.
    """
    if begin[:2] in BOMS:
        raise DataError(f"{path} is in {BOMS[begin[:2]]}, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 FILE.")
    # ASCII characters have a zero byte in UTF-16, in every second byte.
    if len(begin) == 4 and (begin[1::2] == b"\0\0") != (begin[::2] == b"\0\0"):
        name = "UTF-16LE" if begin[1] == 0 else "UTF-16BE"
        raise DataError(f"{path} is in {name}, not UTF-8. Convert it: iconv -f {name} -t UTF-8 FILE > NEW.")
    if begin[:2] == GZIP_MAGIC:
        raise DataError(f"{path} is packed by gzip, and only the unpacked file is read. Type gunzip -k FILE.")
    if begin == _ARCHIVE:
        raise DataError(
            f"{path} is an archive (ZIP, as .xlsx and .docx are), not a text. Unpack it, or save a table as CSV UTF-8."
        )
    if begin in _TABLE_FORMATS:
        raise DataError(f"{path} is {_TABLE_FORMATS[begin]}")


def undecodable_lines(path: AnyPath, lines: Iterable[bytes]) -> Iterator[Problem]:
    """Yields a problem for each line that is not UTF-8. It names the likely encoding, guessed from the first ones."""
    wrong = _wrong_lines(lines)
    first = list(itertools.islice(wrong, _MAX_GUESSED_LINES))
    encoding = guess_encoding(line for _, _, line in first)
    remedy = f"It is probably {encoding}; convert it: iconv -f {encoding} -t UTF-8 FILE > NEW."
    for number, byte, _ in itertools.chain(first, wrong):
        location = DataLocation(str(path), number)
        yield Problem(UNDECODABLE_TEXT, location, f"{location} is no UTF-8: it holds the byte 0x{byte:02x}.", remedy)


def _wrong_lines(lines: Iterable[bytes]) -> Iterator[Tuple[int, int, bytes]]:
    """Yields number, first invalid byte and a part around it of each line that is not UTF-8."""
    for number, line in enumerate(lines, start=1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            begin = max(error.start - _BYTES_BEFORE, 0)
            yield number, line[error.start], line[begin : begin + _SAMPLE_BYTES]


def as_posix(name: str) -> str:
    r"""Converts a path in a data file that was written on Windows: \ becomes /."""
    return name.replace("\\", "/")


def prefix_length(folder: AnyPath) -> int:
    """Returns the length of the beginning that a folder's paths from `walk` have in common: pathlib leaves "./" out."""
    return 0 if str(folder) == os.curdir else len(os.path.join(str(folder), ""))


_SYSTEM_FOLDERS = ("__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found")
"""Names, in lower case, of folders that operating systems, archives of macOS and network drives add. Network drives
store thumbnails of the images in them."""


def is_hidden(name: str) -> bool:
    """Returns True for names that are ignored: names that start with a dot, and folders that systems add."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def normalize_name(name: str) -> str:
    """Normalises a name to NFC for comparisons: macOS writes an accented letter as two characters."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def files_in(folder: AnyPath) -> List[str]:
    """Returns the sorted names of the files in a folder; an empty list if it is no folder or cannot be read."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return []


def list_first(names: Sequence[str]) -> str:
    """Joins the first `SHOWN_NAMES` names for a message."""
    return f"{', '.join(names[:SHOWN_NAMES])}{', ...' if len(names) > SHOWN_NAMES else ''}"


def require_exists(path: AnyPath) -> None:
    """Checks that a path exists.

    Raises:
        DataError: it does not; the message suggests the nearest name.
    """
    if not exists(path):
        error = file_error(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        raise DataError(f"{error}{suggest_existing(path)}")


def suggest_existing(path: AnyPath) -> str:
    """Returns a sentence that suggests existing names similar to a missing path; "" if there are none."""
    missing = Path(path)
    while not exists(missing.parent):
        missing = missing.parent
    try:
        names = os.listdir(missing.parent)
    except OSError:
        names = []
    return did_you_mean(missing.name, names)


def exists(path: AnyPath) -> bool:
    """Returns True if a path exists. A link to nothing does not.

    Raises:
        DataError: unknown, because the path is too long or invalid, or a parent folder may not be searched.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise file_error(path, error) from error
    except ValueError as error:
        raise DataError(f"{str(path)!r} is no path: {error}.") from error
    return True


def id_of(path: AnyPath) -> FileId:
    """Returns device and inode of the file that a path leads to.

    Raises:
        OSError: the path does not exist.
    """
    status = os.stat(path)
    return status.st_dev, status.st_ino


def refuse_shared(files: Mapping[str, Iterable[AnyPath]], findings: Findings = STRICT) -> None:
    """Checks that no file belongs to two splits, such as train and val, also under different names.

    Args:
        files: name of the owner, e.g. a split -> existing paths.
        findings: collects the shared files.

    Raises:
        DataError: a file is shared.
    """
    owner_of: Dict[FileId, Tuple[str, AnyPath]] = {}
    for owner, paths in files.items():
        for path in paths:
            try:
                first_owner, first_path = owner_of.setdefault(id_of(path), (owner, path))
            except OSError as error:
                raise file_error(path, error) from error
            if first_owner != owner:
                fact = (
                    f"'{first_path}' ({first_owner}) and '{path}' ({owner}) are the same file: training samples must "
                    "not be measured."
                )
                findings.refuse(Problem(LISTED_TWICE, DataLocation(str(path)), fact, "Give each its own."))


def walk(
    folder: AnyPath,
    endings: Tuple[str, ...],
    excluded: Collection[FileId] = (),
    matches: Optional[Callable[[str], bool]] = None,
    findings: Findings = STRICT,
) -> List[Tuple[Path, FileId]]:
    """Returns the files in a folder and its subfolders with these extensions, sorted by path, without hidden files.

    Links are followed. Each real folder is visited once and each real file is returned once, whatever their names: a
    link to a parent folder would otherwise never end.

    Args:
        folder: folder to search.
        endings: extensions in lower case; they match names in any case.
        excluded: real folders to skip, because they belong to another split.
        matches: returns True for the path of a regular file without such an extension that is to be returned too.
        findings: collects names that lead to no regular file, and files with two names.

    Raises:
        DataError: a folder cannot be read, or a matching name leads to a pipe, a device or nowhere.
    """
    path_of: Dict[FileId, Path] = {}
    visited: Set[FileId] = set()
    waiting = [os.fspath(folder)]
    try:
        visited.add(id_of(folder))
    except OSError as error:
        raise file_error(folder, error) from error
    while waiting:
        for path, file_id, is_folder in _entries(waiting.pop(), endings, matches, findings):
            if not is_folder:
                before = path_of.setdefault(file_id, Path(path))
                if str(before) != path:
                    fact = f"'{path}' and '{before}' are the same file, which counts once."
                    findings.remark(Problem(LISTED_TWICE, DataLocation(path), fact, "Remove one of the two names."))
            elif file_id not in visited and file_id not in excluded:
                visited.add(file_id)
                waiting.append(path)
    return sorted((path, file_id) for file_id, path in path_of.items())


def _entries(
    folder: str, endings: Tuple[str, ...], matches: Optional[Callable[[str], bool]], findings: Findings
) -> Iterator[Tuple[str, FileId, bool]]:
    """Yields (path, identity, whether it is a folder) of the subfolders and matching files of a folder.

    Links come last, so that a file with a link is returned under its real name.
    """
    try:
        with os.scandir(folder) as entries:
            # Sorted: under which of two names a file counts must not depend on the order of the file system.
            listed = sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
        device = os.stat(folder).st_dev
        lists_inodes = _lists_inodes(listed, device)
    except OSError as error:
        raise file_error(folder, error) from error
    for entry in listed:
        is_wanted = entry.name.lower().endswith(endings)
        if is_hidden(entry.name):
            continue
        # No stat call: there may be millions of files, and the directory listing has their type and inode.
        if lists_inodes and entry.is_file(follow_symlinks=False):
            if is_wanted or matches is not None and matches(entry.path):
                yield entry.path, (device, entry.inode()), False
            continue
        try:
            status = entry.stat()
        except OSError as error:
            if is_wanted:  # a broken link without a matching extension does not matter
                findings.refuse(Problem(UNREADABLE_FILE, DataLocation(entry.path), str(file_error(entry.path, error))))
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_wanted and not is_folder:
            refused = _why_irregular(entry.path, status)
            if refused:
                findings.refuse(Problem(UNREADABLE_FILE, DataLocation(entry.path), refused))
                continue
        is_wanted = is_wanted or matches is not None and stat.S_ISREG(status.st_mode) and matches(entry.path)
        if is_wanted or is_folder:
            yield entry.path, (status.st_dev, status.st_ino), is_folder


def _lists_inodes(entries: Sequence[os.DirEntry], device: int) -> bool:
    """Returns True if the inodes of a directory listing are those of `stat`.

    sshfs lists the same inode for all files, and an overlay lists those of the file systems below it. Different files
    would then be taken for the same one.
    """
    file = next((entry for entry in entries if entry.is_file(follow_symlinks=False)), None)
    return file is None or id_of(file.path) == (device, file.inode())
