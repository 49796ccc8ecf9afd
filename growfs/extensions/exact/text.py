"""The passes of --exact in the text of the status."""

from __future__ import annotations

from growfs.daemon.status_text import Line, files, shortened
from growfs.status_and_metrics import ExactStatus, MountStatus
from growfs.units import format_size


def line(exact: ExactStatus, status: MountStatus) -> Line:
    """The position in the passes."""
    text = f"{exact.pass_}, " + (f"part {exact.part} of {exact.parts}" if exact.part else "no part listed yet")
    if exact.parts:
        text += f", about {files(round(status.coverage.files / exact.parts))} each"
    if exact.missing_files:
        text += f"; {files(exact.missing_files)} ({format_size(exact.missing_bytes)}) of the next part still to come"
    if exact.waited_for:
        in_use = f" while {exact.in_use} {'are' if ',' in exact.in_use else 'is'} in use" if exact.in_use else ""
        waiting = f"{exact.waiting} processes wait" if exact.waiting > 1 else "a process waits"
        text += f"; {waiting} for {exact.waited_for}{in_use}"
    if exact.left_out_files:
        text += f"; {files(exact.left_out_files)} left out, such as {shortened(exact.left_out_example)!r}"
    return "pass", text
