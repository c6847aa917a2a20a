"""The report about a smaller form of a network beside float32, as text. Imports no MXNet."""

from __future__ import annotations

from typing import Any, List, Mapping

FLOAT32 = "float32"


def table_of(report: Mapping[str, Any]) -> List[List[str]]:
    """Returns a comparison as rows of text, titles first.

    Args:
        report: result of `compress`.
    """
    form = report["form"]
    metric, sizes = report["metric"], report["bytes"]
    rows = [
        ["", FLOAT32, form, ""],
        [metric["name"], f"{metric[FLOAT32]:.6g}", f"{metric[form]:.6g}", f"{metric[form] - metric[FLOAT32]:+.2g}"],
        [
            f"file{'s' * (len(report['files'][form]) > 1)}, MB",
            *(f"{sizes[name] / 1e6:.3g}" for name in (FLOAT32, form)),
            f"1/{sizes[FLOAT32] / sizes[form]:.1f}",
        ],
    ]
    for row in report["latency"]:
        threads = "1 thread" if row["threads"] == 1 else f"{row['threads']} threads"
        rows.append(
            [
                f"batch {row['batch']}, {threads}, ms",
                f"{row[FLOAT32]:.4g}",
                f"{row[form]:.4g}",
                f"{row[FLOAT32] / row[form]:.2f} times as fast",
            ]
        )
    return rows


def remarks_of(report: Mapping[str, Any]) -> List[str]:
    """Returns sentences about the quantization and the reason for its kind.

    Args:
        report: result of `compress`.
    """
    form = report["form"]
    if form != "int8":
        return [f"Weights are stored as {form} and computed with in float32.", f"Measured on {report['processor']}."]
    calibrated = f", ranges from {report['calibration_samples']} samples" if "calibration_samples" in report else ""
    parts = [f"{name}.onnx, {part['way']}: {part['in_int8']} in int8." for name, part in report["parts"].items()]
    return [
        f"int8, {report['way']}{calibrated}: {report['reason']}; {report['in_int8']} in int8.",
        *parts,
        f"Measured on {report['processor']}.",
    ]
