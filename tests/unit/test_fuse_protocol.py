"""The FUSE protocol: messages recorded from Linux 6.18 (7.45), and a round trip of each structure."""

from __future__ import annotations

import struct

import pytest

from growfs.fuse import protocol, replies
from growfs.fuse.protocol import HEADER, InitFlag, Malformed, Members, Opcode, Structure
from growfs.fuse.session import FLAGS
from growfs.vfs.attributes import Attributes, Entry

INIT = bytes.fromhex(
    "680000001a000000020000000000000000000000000000000000000000000000000000000000000007000000"
    "2d00000000000200fbffff73fd05000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000"
)
ENTRY = bytes.fromhex(
    "020400000000000000000000000000008051010000000000805101000000000000000000000000000204000000000000e093040000000000"
    "4a02000000000000cf64006b00000000cf64006b00000000cf64006b00000000a94f6d02a94f6d02a94f6d02248100000100000000000000"
    "00000000000000000010000000000000"
)
DIRENT = bytes.fromhex("0204000000000000030000000000000002000000080000006631000000000000")
FILE = Attributes(1026, False, 300_000, 0x6B0064CF * 10**9 + 0x026D4FA9, 86_400.0)

OFFERED = FLAGS | InitFlag.PASSTHROUGH | InitFlag.CACHE_SYMLINKS


def test_the_init_request_of_the_kernel_is_accepted() -> None:
    request = protocol.parse_request(INIT)
    assert (request.opcode, request.unique) == (Opcode.INIT, 2)
    offer = protocol.InitIn.unpack(request.message, HEADER)
    assert (offer.major, offer.minor, offer.max_readahead) == (7, 45, 131_072)
    assert OFFERED & protocol.all_flags(offer) == OFFERED
    answer = negotiated(offer, FLAGS, 64, 4096)
    assert (answer.major, answer.minor, answer.max_stack_depth) == (7, 45, 2)
    assert protocol.all_flags(answer) == FLAGS | InitFlag.CACHE_SYMLINKS


@pytest.mark.parametrize(("minor", "used"), [(28, 28), (40, 40), (44, 44), (45, 45), (46, 45), (99, 45)])
def test_the_lower_minor_version_is_used(minor: int, used: int) -> None:
    assert negotiated(offered(minor=minor), FLAGS, 1, 4096).minor == used


@pytest.mark.parametrize(("major", "minor"), [(7, 27), (7, 12), (6, 45)])
def test_a_kernel_that_is_too_old_is_refused(major: int, minor: int) -> None:
    with pytest.raises(protocol.KernelTooOld, match=f"FUSE {major}.{minor}"):
        protocol.negotiate(offered(major=major, minor=minor), FLAGS, InitFlag.CACHE_SYMLINKS, 1, 4096, 1)


@pytest.mark.parametrize(
    ("needed", "missing"),
    [
        (InitFlag.PASSTHROUGH, InitFlag.PASSTHROUGH),
        (InitFlag.PASSTHROUGH, InitFlag.INIT_EXT),
        (InitFlag.CACHE_SYMLINKS, InitFlag.CACHE_SYMLINKS),
    ],
)
def test_a_kernel_without_what_an_engine_needs_is_refused(needed: InitFlag, missing: InitFlag) -> None:
    with pytest.raises(protocol.KernelTooOld):
        protocol.negotiate(offered(flags=int(OFFERED) & ~int(missing)), FLAGS, needed, 1, 4096, 1)


def test_flags_that_the_kernel_does_not_offer_are_not_set() -> None:
    offer = offered(flags=int(InitFlag.CACHE_SYMLINKS | InitFlag.INIT_EXT))
    assert protocol.all_flags(negotiated(offer, FLAGS, 1, 4096)) == protocol.all_flags(offer)


@pytest.mark.parametrize(("page_bytes", "pages"), [(4096, 256), (16384, 64), (65536, 16)])
def test_the_largest_read_is_the_same_for_all_page_sizes(page_bytes: int, pages: int) -> None:
    answer = negotiated(offered(), FLAGS, 1, page_bytes)
    assert (answer.max_pages, answer.max_write) == (pages, 4096)


def offered(major: int = 7, minor: int = 45, flags: int = int(OFFERED)) -> Members:
    return protocol.InitIn.members(major, minor, 131_072, flags & 0xFFFFFFFF, flags >> 32)


def negotiated(offer: Members, wanted: InitFlag, max_background: int, page_bytes: int) -> Members:
    answer = protocol.negotiate(offer, wanted, InitFlag.CACHE_SYMLINKS, max_background, page_bytes, 2)
    return protocol.InitOut.unpack(answer)


def test_pack_an_entry_of_a_directory() -> None:
    entry = Entry(1026, "f1", 0, FILE.size, FILE.mtime_ns, 3)
    assert replies.entry_out(FILE) == ENTRY
    assert replies.dirent(entry) == DIRENT
    assert replies.direntplus(entry) == ENTRY + DIRENT


@pytest.mark.promise(9)
@pytest.mark.parametrize("name", ["f1", "x", "ü" * 20, "y" * 255, "12345678"])
@pytest.mark.parametrize("is_dir", [0, 1])
def test_the_fast_encoding_of_directory_entries_is_the_same(name: str, is_dir: int) -> None:
    entry = Entry(1026, name, is_dir, 0 if is_dir else FILE.size, FILE.mtime_ns, 3)
    encoded = name.encode()
    head = protocol.Dirent.pack(1026, 3, len(encoded), 4 if is_dir else 8)
    assert replies.dirent(entry) == head + encoded + bytes(-len(encoded) % 8)
    assert replies.direntplus(entry) == replies.entry_out(entry.attributes) + replies.dirent(entry)
    if not is_dir:
        assert entry.attributes == FILE


def test_a_truncated_structure_is_refused() -> None:
    for kind in (kind for kind in vars(protocol).values() if isinstance(kind, Structure)):
        for length in range(kind.size):
            with pytest.raises(Malformed, match=kind.name):
                kind.unpack(bytes(length))


def test_a_message_of_another_length_than_its_header_says_and_a_name_that_does_not_end_it_are_refused() -> None:
    for message in (b"", INIT[:39], INIT[:-1], INIT + b"x", struct.pack("=I", 4)):
        with pytest.raises(Malformed):
            protocol.parse_request(message)
    for body in (b"", b"name", b"two\0names\0", b"name\0rest"):
        with pytest.raises(Malformed):
            protocol.parse_name(protocol.FuseRequest(1, 2, 1, 0, bytes(HEADER) + body))
