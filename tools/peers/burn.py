"""A job that only needs CPU: `python burn.py SECONDS PROCESSES` prints how many samples it made per second.

A sample is decoding the same image from memory.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
import time

from PIL import Image


def burn(until: float, image: bytes) -> int:
    """Decode until a time of the monotonic clock; returns how often."""
    count = 0
    while time.monotonic() < until:
        Image.open(io.BytesIO(image)).convert("RGB").resize((224, 224))
        count += 1
    return count


def main() -> None:
    seconds, processes = float(sys.argv[1]), int(sys.argv[2])
    made = io.BytesIO()
    Image.effect_noise((500, 375), 60).convert("RGB").save(made, "JPEG", quality=90)
    with multiprocessing.Pool(processes) as pool:
        until = time.monotonic() + seconds
        print(sum(pool.starmap(burn, [(until, made.getvalue())] * processes)) / seconds)


if __name__ == "__main__":
    main()
