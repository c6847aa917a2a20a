"""`doctor`: examines hardware and libraries. `mxtrain.runtime.probe` imports MXNet, in a process of its own."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Dict, List, Literal, Mapping, Optional, Sequence, Tuple

from mxtrain.config.libraries import EXTRAS, NUMPY, install_command, wrong_versions
from mxtrain.config.plugins import find_plugins
from mxtrain.engine.native import NO_COMPILER
from mxtrain.errors import ConfigError
from mxtrain.model.weights_files import cached_weights, models_folder
from mxtrain.runtime.amx import computes_bfloat16, cpu_flags, has_amx, has_fast_bfloat16
from mxtrain.runtime.cores import cgroup_quota, usable_cores
from mxtrain.runtime.given_mxnet import SUPPORTED_MXNET, NvidiaContainer, find_container
from mxtrain.runtime.gpus import REMEDY, find_gpus, is_published_build, unsupported_reason
from mxtrain.runtime.probing import ProbeResult, run_probe
from mxtrain.terminal.program import tensorboard

GPU_REMEDY = "with an NVIDIA driver: MXTRAIN_MXNET=cu117 scripts/train"
GPU_FAILURE_REMEDY = "look at it with nvidia-smi (memory in use, errors); hide it with CUDA_VISIBLE_DEVICES"
HOROVOD_REMEDY = "scripts/horovod builds it (two minutes; needs g++, make and CMake), for kvstore=horovod"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    what: str
    state: Literal["ok", "missing", "problem"]
    """missing: a feature that cannot be used; problem: training cannot work."""
    value: str
    remedy: str = ""
    """Advice; empty if there is nothing to do."""


@dataclass(frozen=True)
class DoctorResult:
    """Result of `doctor`; prints as the table of the command.

    Attributes:
        findings: one for each part of the machine and the installation.
    """

    findings: Sequence[Finding]

    @property
    def usable(self) -> bool:
        """True if training can work on this machine."""
        return not any(finding.state == "problem" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The conclusion, as a sentence."""
        return "Training works here." if self.usable else "Training cannot work here: see the lines marked 'problem'."

    def __str__(self) -> str:
        width = max(len(finding.what) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.state:8} {finding.what:{width}}  {finding.value}".rstrip())
            if finding.remedy:
                lines.append(f"{'':8} {'':{width}}  -> {finding.remedy}")
        return "\n".join([*lines, "", self.verdict])

    __repr__ = __str__


def doctor(*, timeout: float = 120.0) -> DoctorResult:
    """Examines hardware and libraries of this machine, as ``mxtrain doctor``; problems become findings, not errors.

    MXNet is imported in a process of its own, so that a broken installation does not end this one.

    Args:
        timeout: limit for importing and trying MXNet, in seconds.

    Returns:
        ``usable``, and ``findings`` with ``what``, ``state`` (``"ok"``, ``"missing"``: a feature cannot be used,
        ``"problem"``: training cannot work), ``value`` and ``remedy``.

    Raises:
        ConfigError: the limit is no positive number.

    >>> found = mxtrain.doctor()
    >>> found.usable, [(one.what, one.remedy) for one in found.findings if one.state == "missing"]
    """
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not timeout > 0:
        raise ConfigError(f"doctor: timeout={timeout!r:.60}: it must be a positive number of seconds.")
    probe = run_probe(float(timeout))
    return DoctorResult(
        [
            *judge_machine(),
            *_container(probe),
            *_packages(probe),
            *_mxnet(probe),
            *_environment(probe),
            *_features(probe),
            _weights(),
            *judge_plugins(),
        ]
    )


def judge_plugins() -> List[Finding]:
    """Lists installed packages that add options; a package that cannot be used keeps every command from starting."""
    findings = []
    for plugin in find_plugins():
        files = sorted(plugin.conf.rglob("*.yaml")) if plugin.conf is not None else []
        options = f"{len(files)} options" if len(files) != 1 else "1 option"
        state: Literal["ok", "problem"] = "problem" if plugin.problem else "ok"
        value = f"{plugin.package}: {plugin.problem or f'{options}, classes of {plugin.module}'}"
        remedy = f"python -m pip uninstall {plugin.package.partition(' ')[0]}" if plugin.problem else ""
        findings.append(Finding(f"plug-in {plugin.name}", state, value, remedy))
    return findings


def _weights() -> Finding:
    """Lists the published weights in the cache, which need no download."""
    names = cached_weights()
    some = f": {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}" if names else ""
    return Finding("pretrained weights", "ok", f"{len(names)} in {models_folder()}{some}")


def judge_machine() -> List[Finding]:
    """Returns the findings on Python, platform, processor, memory and disks."""
    version = sys.version_info[:2]
    supported = (3, 9) <= version < (3, 12)
    platform_name = f"{platform.system()} on {platform.machine()}"
    linux = platform_name == "Linux on x86_64"
    flags = cpu_flags()
    isa = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    quota = cgroup_quota()
    cores = f"{usable_cores()} usable of {os.cpu_count()}" + (f" (control group: {quota:g})" if quota else "")
    return [
        Finding(
            "Python",
            "ok" if supported else "problem",
            f"{platform.python_version()} ({sys.executable})",
            ""
            if supported
            else "MXNet needs Python 3.9, 3.10 or 3.11: MXTRAIN_PYTHON=/path/to/python3.11 scripts/train",
        ),
        Finding(
            "platform",
            "ok" if linux else "problem",
            f"{platform.platform()}",
            "" if linux else "MXNet 1.9.1 is published for Linux on x86-64 only; use such a machine or a container",
        ),
        Finding("cores", "ok", cores),
        Finding("memory", "ok", _memory()),
        judge_space(
            "disk here", Path.cwd(), 1.0, "checkpoints need room: run from another folder or set hydra.run.dir"
        ),
        judge_space("shared memory", Path("/dev/shm"), 0.5, "decoding workers use it; in Docker: --shm-size=1g"),
        Finding(
            "instructions",
            "ok" if "avx2" in isa else "missing",
            ", ".join(isa) or "none of AVX2, AVX-512, AMX",
            "" if "avx2" in isa else "MXNet's CPU kernels are slow without AVX2; nothing to install",
        ),
    ]


def _memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return "unknown"
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return f"{kilobytes['MemAvailable'] / 2**20:.1f} GiB available of {kilobytes['MemTotal'] / 2**20:.1f}"


def judge_space(name: str, folder: Path, wanted_gib: float, remedy: str) -> Finding:
    """Returns the free space of a disk; it is missing if it is below `wanted_gib`, or if there is no such folder."""
    try:
        free = shutil.disk_usage(folder).free / 2**30
    except OSError as error:
        return Finding(name, "missing", str(error), remedy)
    if free < wanted_gib:
        return Finding(name, "missing", f"{free:.1f} GiB free", remedy)
    return Finding(name, "ok", f"{free:.1f} GiB free")


def installed_version(name: str) -> str:
    """Returns the version of an installed package, or an empty string."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def mxnet_packages() -> List[str]:
    """Returns the installed packages that bring the module `mxnet`, e.g. ["mxnet-cu117 1.9.1"]."""
    packages = {f"{item.metadata['Name']} {item.version}" for item in metadata.distributions() if item.metadata["Name"]}
    return sorted(name for name in packages if re.match(r"mxnet(-cu\d+|-mkl|-native)* ", name))


def _container(probe: ProbeResult) -> List[Finding]:
    """Returns what is known of NVIDIA's MXNet container, if this is one."""
    container = find_container()
    return [] if container is None else [judge_container(container, probe.found.get("features", {}))]


def judge_container(container: NvidiaContainer, features: Mapping[str, bool]) -> Finding:
    """Judges NVIDIA's MXNet container: its MXNet must still be there, which a package of MXNet replaces.

    Args:
        container: the container.
        features: flag of the installed MXNet -> True if it was built in; empty if MXNet cannot be imported.
    """
    if features and not features.get("CUDA"):
        remedy = "install mxtrain without an extra in a fresh container, as examples/container/Dockerfile.ngc does"
        return Finding("container", "missing", f"{container}, but its MXNet was replaced by one for CPUs", remedy)
    if container.is_known:
        gpus = "its MXNet runs on GPUs of compute capability 6.0 to 9.0, with NCCL and Horovod"
        return Finding("container", "ok", f"{container}: {gpus}, by its release notes")
    return Finding("container", "ok", f"{container}: its release notes say for which GPUs it was built")


def _packages(probe: ProbeResult) -> List[Finding]:
    packages = mxnet_packages()
    numpy = installed_version("numpy")
    return [judge_mxnet_packages(packages, str(probe.found.get("path", ""))), judge_numpy(numpy)]


def judge_mxnet_packages(packages: List[str], path: str = "") -> Finding:
    """Judges the installed packages of MXNet: exactly one may be there, for all of them install the same module.

    Args:
        packages: names and versions of the packages.
        path: file of the module `mxnet`; empty if it cannot be imported.
    """
    if len(packages) == 1:
        return Finding("MXNet package", "ok", packages[0])
    if not packages and path:
        return Finding("MXNet package", "ok", f"none: MXNet comes from {Path(path).parent}, and needs none")
    if not packages:
        return Finding(
            "MXNet package", "missing", "none installed", "scripts/train installs it, or pip install mxnet==1.9.1"
        )
    names = " ".join(package.split()[0] for package in packages)
    remedy = f"they overwrite each other: pip uninstall -y {names}; then pip install the one that fits"
    return Finding("MXNet package", "problem", f"{len(packages)} installed at once: {', '.join(packages)}", remedy)


def judge_numpy(version: str) -> Finding:
    """Judges the version of NumPy.

    MXNet 1.9.1 works with versions below 1.24, with 1.24 to 1.26 through `mxtrain.engine.backend`, and never with 2.
    """
    remedy = f"pip install {NUMPY}"
    if not version:
        return Finding("numpy", "problem", "not installed", remedy)
    major, minor = (int(part) for part in version.split(".")[:2])
    if major >= 2:
        return Finding("numpy", "problem", f"{version}; MXNet 1.9.1 never works with numpy 2", remedy)
    if (major, minor) >= (1, 24):
        return Finding("numpy", "ok", f"{version}; works through mxtrain, not with a bare `import mxnet`", remedy)
    return Finding("numpy", "ok", version)


def _mxnet(probe: ProbeResult) -> List[Finding]:
    if "mxnet" not in probe.found:
        return [Finding("MXNet", "problem", probe.cause, remedy_for(probe.cause))]
    findings = [judge_mxnet(str(probe.found["mxnet"]), str(probe.found["path"]))]
    if "gradient" in probe.found:
        findings.append(Finding("computing", "ok", "a convolution and its gradient"))
    else:
        findings.append(Finding("computing", "problem", probe.cause, remedy_for(probe.cause)))
    # The package's own version, as in meta.json: the module names another.
    version = installed_version("gluoncv") or probe.found.get("gluoncv", "")
    if probe.stage == "gluoncv" and probe.cause:
        findings.append(Finding("GluonCV", "problem", probe.cause, remedy_for(probe.cause)))
    else:
        findings.append(Finding("GluonCV", "ok", version))
    return findings


def judge_mxnet(version: str, path: str) -> Finding:
    """Judges the version of MXNet: mxtrain is tested with one only.

    Args:
        version: `mxnet.__version__`; a build of one's own may add `+sm90`.
        path: file of the module.
    """
    if re.match(rf"{re.escape(SUPPORTED_MXNET)}(\D|$)", version):
        return Finding("MXNet", "ok", f"{version} ({path})")
    value = f"{version} ({path}); mxtrain is tested with {SUPPORTED_MXNET} only"
    return Finding("MXNet", "missing", value, f"pip install mxnet=={SUPPORTED_MXNET}")


# The first pattern that matches decides, so special causes come before general ones.
_REMEDIES: Tuple[Tuple[str, str], ...] = (
    (r"PZERO|np\.bool|numpy\.dtype size changed|numpy.core.multiarray", f"pip install {NUMPY}"),
    (r"libgomp", "apt install libgomp1"),
    (r"libquadmath", "apt install libquadmath0"),
    (r"libGL\.so|libgthread|libglib", "pip install opencv-python-headless==4.11.0.86 in place of opencv-python"),
    (r"libcuda\.so", "this is a CUDA build and there is no NVIDIA driver: MXTRAIN_MXNET=cpu scripts/train"),
    (
        r"lib(cudart|cublas|cudnn|nccl|cufft|cusolver|cusparse|curand|nvrtc|nvToolsExt)",
        "scripts/train installs it with cu112 to cu117 (by hand: pip install -r requirements/cuda11.txt); cu110 and "
        "cu102 need CUDA on LD_LIBRARY_PATH. Or train on the CPU: MXTRAIN_MXNET=cpu scripts/train",
    ),
    (r"No module named '?mxnet", "scripts/train prepares an environment that has it; or pip install mxnet==1.9.1"),
    (r"No module named", "scripts/train prepares an environment that has it; or pip install the missing package"),
    (r"SIGILL", "unset DNNL_MAX_CPU_ISA; if it stays, the processor is too old for these wheels"),
    (r"SIGKILL", "out of memory is the usual cause: free some, or raise the container's limit"),
    (r"did not answer", "a slow disk or a busy machine: mxtrain doctor --timeout 600"),
    (r"SIGSEGV|SIGABRT", "remove .venv-* and run scripts/train again; report it if it stays"),
)


def remedy_for(cause: str) -> str:
    """Returns the advice for the cause that prevents the use of MXNet."""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, cause):
            return remedy
    return "remove .venv-* and run scripts/train again to get the tested set of packages"


def _environment(probe: ProbeResult) -> List[Finding]:
    """Returns the variables that runtime=auto sets before MXNet is imported, with the reasons."""
    return [Finding("environment", "ok", str(line)) for line in probe.found.get("runtime", ())]


def judge_gpus(count: int, failures: Mapping[str, str] = MappingProxyType({})) -> Finding:
    """Returns the GPUs, with the reason if MXNet may not run on a GPU that the driver reports, or failed when it was
    tried."""
    known = find_gpus()
    reason = unsupported_reason(known)
    # Published wheels support known GPUs; a build from source may support others.
    if reason and (not count or is_published_build()):
        return Finding("GPUs", "missing", reason, REMEDY)
    if failures:
        each = "; ".join(f"gpu({index}): {why}" for index, why in failures.items())
        return Finding("GPUs", "missing", f"{len(failures)} of {count} can't multiply: {each}", GPU_FAILURE_REMEDY)
    names = f" ({', '.join(gpu.name for gpu in known)})" if known else ""
    return Finding("GPUs", "ok" if count else "missing", f"{count}{names}" + ("; each multiplied" if count else ""))


def _features(probe: ProbeResult) -> List[Finding]:
    flags: Dict[str, bool] = probe.found.get("features", {})

    versions: Dict[str, str] = probe.found.get("libraries", {})

    def flag(what: str, name: str, remedy: str) -> Finding:
        if flags.get(name):
            version = versions.get(name.lower(), "")
            return Finding(what, "ok", f"built in, {version} is loaded" if version else "built in")
        return Finding(what, "missing", "not in this build" if flags else "not examined", remedy)

    gpus = int(probe.found.get("gpus", 0))
    cuda = flag("CUDA", "CUDA", GPU_REMEDY)
    if flags.get("CUDA") and not gpus:
        why = str(probe.found.get("gpu_error", "no GPU found"))
        cuda = Finding("CUDA", "missing", f"{cuda.value}, but {why}", "check nvidia-smi and CUDA_VISIBLE_DEVICES")
    return [
        cuda,
        judge_gpus(gpus, probe.found.get("gpu_failures", {})),
        flag("cuDNN", "CUDNN", "comes with the CUDA builds"),
        flag("NCCL", "NCCL", "comes with the CUDA builds; kvstore=device works without it"),
        flag("oneDNN", "MKLDNN", "take one of the published wheels: without it the CPU is many times slower"),
        flag("image decoding", "OPENCV", "take one of the published wheels: dataset=image_record needs it"),
        flag("distributed stores", "DIST_KVSTORE", "take one of the published wheels: kvstore=dist_* need it"),
        _s3(probe),
        _operators(probe),
        judge_bfloat16(probe),
        Finding("float16", "ok" if gpus else "missing", "on GPUs only", "" if gpus else "on CPUs: amp=bfloat16 or off"),
        _horovod(probe),
        judge_package(
            "TensorBoard", "tensorboard", install_command("tensorboard"), f"{tensorboard()} --logdir outputs"
        ),
        judge_package("mxtrain tune", "optuna", install_command("optuna>=4.4,<6", "cmaes>=0.12,<1")),
        judge_package("joblib sweeps", "hydra-joblib-launcher", install_command("hydra-joblib-launcher<1.4")),
        *other_versions(),
    ]


def other_versions() -> List[Finding]:
    """Returns the optional packages whose installed version mxtrain does not accept."""
    requirements = sorted({text for extra in EXTRAS.values() for text in extra})
    return [
        Finding(name, "missing", f"{version}; mxtrain needs {text}", install_command(text))
        for text, name, version in wrong_versions(requirements)
    ]


def _s3(probe: ProbeResult) -> Finding:
    if probe.found.get("s3"):
        return Finding("s3:// in MXNet", "ok", "built in (DMLC_USE_S3)")
    value = "not in this build" if "s3" in probe.found else "not examined"
    return Finding("s3:// in MXNet", "missing", value, "no published wheel has it; mxtrain reads s3:// itself")


def _operators(probe: ProbeResult) -> Finding:
    operators = probe.found.get("operators", {"compiled": False, "why": "not examined"})
    if operators["compiled"]:
        return Finding("native operators", "ok", "compiled for this processor")
    remedy = "apt install g++: BERT and Faster R-CNN then train faster" if NO_COMPILER in operators["why"] else ""
    return Finding("native operators", "missing", operators["why"], remedy)


def judge_bfloat16(probe: ProbeResult) -> Finding:
    """Returns whether this machine computes in bfloat16, and whether that is faster than float32."""
    if not probe.found.get("bfloat16"):
        reason = str(probe.found.get("bfloat16_error", probe.cause or "gave wrong numbers"))
        if not computes_bfloat16(cpu_flags()):
            reason = "this processor has no AVX-512 (bw, dq, vl), without which oneDNN has no bfloat16"
        return Finding("bfloat16", "missing", reason, "use amp=off")
    if probe.found.get("amx"):
        return Finding("bfloat16", "ok", "with AMX, which the kernel granted; amp=bfloat16")
    speed = "faster than float32 all the same" if has_fast_bfloat16() else "not faster than float32"
    reason = "the kernel refused AMX" if has_amx(cpu_flags()) else f"without AMX: {speed}"
    return Finding("bfloat16", "ok", reason)


def _horovod(probe: ProbeResult) -> Finding:
    version: Optional[str] = probe.found.get("horovod")
    if version:
        return Finding("Horovod", "ok", f"{version}, {probe.found.get('horovod_with')}: summed with itself")
    return Finding("Horovod", "missing", str(probe.found.get("horovod_error", "not examined")), HOROVOD_REMEDY)


def judge_package(name: str, package: str, remedy: str, use: str = "") -> Finding:
    """Returns the version of an optional package.

    Args:
        name: name of the finding.
        package: name of the distribution.
        remedy: what to do if it is not installed.
        use: what it is used for, shown after its version.
    """
    version = installed_version(package)
    if not version:
        return Finding(name, "missing", "not installed", remedy)
    return Finding(name, "ok", f"{version}; {use}" if use else version)
