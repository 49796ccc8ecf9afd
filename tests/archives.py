"""Archives for the tests of several packages."""

from __future__ import annotations

import io
import random
import tarfile


def tar_of(content: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar archive of these files."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=kind) as writer:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            writer.addfile(info, io.BytesIO(data))
    return archive.getvalue()


def by_tarfile(archive: bytes) -> dict[str, bytes]:
    """The files of a tar archive, as tarfile reads them."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as reader:
        members = {info.name: reader.extractfile(info) for info in reader if info.isfile()}
        return {name: stream.read() for name, stream in members.items() if stream}


def samples(shard: int, each: int = 6, classes: int = 3) -> dict[str, bytes]:
    """The files of a WebDataset shard: KEY.cls and KEY.bin with random content. They cycle through the classes."""
    generator = random.Random(shard)
    content = {}
    for number in range(each):
        key = f"{shard:03}{number:04}"
        content[f"{key}.cls"] = str(number % classes).encode()
        content[f"{key}.bin"] = generator.randbytes(generator.randrange(1, 3000))
    return content
