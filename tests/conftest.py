"""Shared by all tests: MXNet with one thread, and no leftovers."""

import ctypes
import enum
import functools
import gc
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

# Before anything imports MXNet: it reads them once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
from operator_files import copy_operators

from mxtrain.files.cache import own_folder
from mxtrain.runtime.amx import cpu_flags
from mxtrain.runtime.apply import OPENBLAS_CORE, SET_BY_MXTRAIN, openblas_core
from mxtrain.types import NamedFlags, NamedInt

if openblas_core(cpu_flags()):
    # As the command line does: a run in this process and one of another process have the same bits then.
    os.environ.setdefault(OPENBLAS_CORE, openblas_core(cpu_flags()))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would all that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("cli_fixtures", "dataset_fixtures", "model_fixtures")
OWN_THREADS = ("mxtrain",)
CONF = Path(__file__).resolve().parents[1] / "conf"
kept = {"bytes": 1 << 29}
"""Memory after it was looked for last what nobody needs."""


SET_BY_LIBRARIES = frozenset(
    (
        "KMP_INIT_AT_FORK",
        "KMP_DUPLICATE_LIB_OK",
        "CRC32C_SW_MODE",
        "TORCHINDUCTOR_CACHE_DIR",
        "PYGAME_HIDE_SUPPORT_PROMPT",
    )
)
"""Environment variables that scikit-learn, TensorBoard, PyTorch and Gymnasium set where they are imported or used."""


@pytest.fixture(autouse=True)
def no_leaks():
    """A test that leaves a thread of ours or a changed environment behind has found a defect."""
    before, had_mxnet, had_cv2 = dict(os.environ), "mxnet" in sys.modules, "cv2" in sys.modules
    yield
    names = {*before, *os.environ} - {"PYTEST_CURRENT_TEST"}
    changed = {name: os.environ.get(name) for name in names if before.get(name) != os.environ.get(name)}
    for name in changed:  # the next test must not fail, too
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(OWN_THREADS)]
    for thread in threads:
        thread.join(timeout=5)
    left = [thread.name for thread in threads if thread.is_alive()]
    assert not left, f"threads left running: {left}"
    # Variables for MXNet are set until it is imported, so only in the first tests of a process.
    words = f"{SET_BY_MXTRAIN} {changed.get(SET_BY_MXTRAIN) or ''}".split()
    for_mxnet = () if had_mxnet else tuple(word.partition("=")[0] for word in words)
    of_cv2 = () if had_cv2 else ("LD_LIBRARY_PATH",)  # which its import sets
    leaked = {name: value for name, value in changed.items() if name not in (*SET_BY_LIBRARIES, *for_mxnet, *of_cv2)}
    assert not leaked, f"environment variables left changed: {leaked}"


@pytest.fixture(autouse=True)
def plain_parameters():
    """No member of an enum reaches an operator of MXNet, except those whose text is their number on every Python."""
    for module, function, place in (("symbol", "_symbol_creator", 4), ("ndarray", "_imperative_invoke", 3)):
        register = sys.modules.get(f"mxnet.{module}.register")
        call = getattr(register, function, None)
        if call is not None and not hasattr(call, "__wrapped__"):
            setattr(register, function, _with_plain_parameters(call, place))


def _with_plain_parameters(call, place):
    @functools.wraps(call)
    def checked(*given):
        for value in given[place]:
            is_name = isinstance(value, enum.Enum) and not isinstance(value, (NamedInt, NamedFlags))
            if is_name or isinstance(value, (tuple, list)) and any(isinstance(one, enum.Enum) for one in value):
                raise AssertionError(f"an operator gets {value!r}: before Python 3.11 its text is no number")
        return call(*given)

    return checked


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def no_memory_kept():
    """Networks refer to themselves, so they stay until Python looks for that: the tests of one file left gigabytes, and
    the kernel had none for a further process."""
    yield
    if resident_bytes() > kept["bytes"] + (1 << 29):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        kept["bytes"] = resident_bytes()


@pytest.fixture
def small_disk(tmp_path):
    """size -> a new file system of that size."""
    disks = []

    def mount(size):
        disk = tmp_path / f"disk{len(disks)}"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], capture_output=True).returncode:
            pytest.skip("mounting a file system is not permitted here")
        disks.append(disk)
        return disk

    yield mount
    for disk in disks:
        subprocess.run(["umount", disk], check=True)


@pytest.fixture
def device(tmp_path):
    """Another /dev/null."""
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_bytes(b"")
    except PermissionError:
        pytest.skip("making a device is not permitted here")
    return path


@pytest.fixture(scope="session")
def compiled_operators(tmp_path_factory):
    """A folder for compiled operators of all tests: their names say what they were made of and what is in them, and a
    test that starts processes would compile them anew in each cache of its own."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "operators"
    folder.mkdir(exist_ok=True)
    copy_operators(own_folder(), folder)
    return folder


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch, compiled_operators):
    """Trained vocabularies and other data of other tests don't count, nor does anything of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    own = own_folder()
    copy_operators(compiled_operators, own)
    yield
    copy_operators(own, compiled_operators)


@pytest.fixture
def written_memory(monkeypatch):
    """GluonCV's pyramid adds up what ROIAlign leaves unwritten of regions in other maps, which is 0 at best. It leaves
    them out where MXNet is as old as not to have `box_encode`."""
    from mxtrain.engine.backend import mx

    for operators in (mx.nd, mx.sym):  # of networks as they are, and of hybridized ones
        monkeypatch.delattr(operators.contrib, "box_encode")


@pytest.fixture
def describe_run():
    """Overrides -> the validated description, as the command line makes it."""
    from mxtrain.composing.composer import Composer
    from mxtrain.composing.environment import check

    def make(*overrides):
        with Composer() as composer:
            return check(composer.compose(overrides))

    return make


@pytest.fixture
def train_run(describe_run, tmp_path):
    """Overrides -> (Run, Result) of a training run in this process, in a directory of its own."""
    from mxtrain.training.build import build_run

    def train(*overrides, run_dir=None):
        run = build_run(describe_run("logger=jsonl", *overrides), run_dir or tmp_path / "run")
        return run, run.runner.train(run.info)

    return train


PASSED = "MXTRAIN_TESTS_PASSED"
"""Names a file for the tests that pass, one a line, so that `--omit` can leave them out of a further run."""


def pytest_addoption(parser):
    parser.addoption("--omit", metavar="FILE", help="--omit=FILE leaves out the tests that FILE lists, one a line")


class PassedTests:
    """Collects the tests that passed, and writes their names at the end."""

    def __init__(self, file):
        self._file, self._passed = Path(file), set()

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self):
        self._file.write_text("".join(f"{name}\n" for name in sorted(self._passed)), encoding="utf-8")


def pytest_configure(config):
    file = os.environ.pop(PASSED, "")  # neither the processes of pytest-xdist nor those of a test write it as well
    if file:
        config.pluginmanager.register(PassedTests(file))


def pytest_collection_modifyitems(config, items):
    """Adds the markers `slow` and `zoo` to single cases, and puts the files with the most slow tests first: at the end
    of a run of several processes each of them takes a file that is over soon. Slow tests that start processes count
    fourfold, and `slow(N)` counts as N. Leaves out what `--omit` lists."""
    omitted = config.getoption("--omit")
    if omitted:
        names = frozenset(Path(omitted).read_text(encoding="utf-8").splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in names])
        items[:] = [item for item in items if item.nodeid not in names]
    slowness = Counter()
    for item in items:
        for name in ("slow", "zoo"):
            if _is_marked_case(item, name):
                item.add_marker(name)
            if marker := item.get_closest_marker(name):
                starts_processes = {"subprocess", "Process"} & {*vars(item.module)} or "mxtrain" in item.fixturenames
                slowness[item.path] += marker.args[0] if marker.args else 4 if starts_processes else 1
    items.sort(key=lambda item: -slowness[item.path])


def _is_marked_case(item, name):
    """Returns True if `NAME_cases` lists this case of a parametrized test, or `NAME_except` lists only others."""
    listed, others = item.get_closest_marker(f"{name}_cases"), item.get_closest_marker(f"{name}_except")
    return bool(listed and item.callspec.id in listed.args or others and item.callspec.id not in others.args)


def pytest_collection_finish():
    """Leaves what exists now, 500,000 objects of tests and packages, out of every search for garbage, and searches less
    often: it took a sixth of the time of tests that compose."""
    if "hydra._internal.defaults_list" in sys.modules:
        compose_faster()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def compose_faster():
    """Takes half off the time of composing, which tests do thousands of times: files of conf/ are read and merged once,
    and Hydra makes no table for interpolations in defaults lists that have none."""
    from hydra._internal import defaults_list
    from hydra._internal.config_repository import ConfigRepository
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

    from mxtrain.composing.config_files import ConfigLoader

    table = defaults_list._create_interpolation_map
    if hasattr(FileConfigSource.load_config, "__wrapped__"):
        return

    def only_ours(repo):
        return {"hydra.conf", str(CONF), ""}.issuperset(source.path for source in repo.get_sources())

    def table_if_needed(overrides, defaults, self_added):
        return table(overrides, defaults, self_added) if any(one.is_interpolation() for one in defaults) else None

    defaults_list._create_interpolation_map = table_if_needed
    FileConfigSource.load_config = _done_once(
        FileConfigSource.load_config,
        lambda source, config_path: (source.path, config_path) if CONF == Path(source.path) else None,
    )
    ConfigRepository.load_config = _done_once(
        ConfigRepository.load_config, lambda repo, config_path: config_path if only_ours(repo) else None
    )
    ConfigLoader._compose_config_from_defaults_list = _done_once(
        ConfigLoader._compose_config_from_defaults_list,
        lambda loader, defaults, repo: (loader.typed, *map(repr, defaults)) if only_ours(repo) else None,
    )


def _done_once(method, key_of):
    """Returns a method that makes copies of its first result for the same key; None stands for no key."""
    results = {}

    @functools.wraps(method)
    def copied(*given, **named):
        key = key_of(*given, **named)
        if key is None:
            return method(*given, **named)
        if key not in results:
            results[key] = pickle.dumps(method(*given, **named))
        return pickle.loads(results[key])  # noqa: S301  # made above

    return copied


@pytest.fixture(scope="session")
def mx():
    import mxnet

    return mxnet
