"""The FUSE protocol: messages recorded from Linux 6.18 (7.45), and a round trip of each structure."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.fuse import encode, protocol, structs
from growfs.fuse.protocol import HEADER, InitFlag, Opcode
from growfs.fuse.session import FLAGS
from growfs.fuse.structs import Malformed, Members, Structure
from growfs.vfs.attributes import Attributes, Capacity, Entry

INIT = bytes.fromhex(
    "680000001a000000020000000000000000000000000000000000000000000000000000000000000007000000"
    "2d00000000000200fbffff73fd05000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000"
)
LOOKUP = bytes.fromhex("2a0000000100000008000000000000000100000000000000000000000000000009420000000000006100")
OPEN = bytes.fromhex("300000000e0000001400000000000000020400000000000000000000000000000a420000000000000080000000000000")
OPENED = bytes.fromhex("2000000000000000140000000000000002040000000000008000000001000000")
READ = bytes.fromhex(
    "500000000f0000002600000000000000080000000000000000000000000000000c42000000000000"
    "01000000000001004c0000000000000000000200020000002f885f71967655fb0080000000000000"
)
RELEASE = bytes.fromhex(
    "4000000012000000180000000000000002040000000000000000000000000000000000000000000002040000000000000080000000000000"
    "0000000000000000"
)
ENTRY = bytes.fromhex(
    "020400000000000000000000000000008051010000000000805101000000000000000000000000000204000000000000e093040000000000"
    "4a02000000000000cf64006b00000000cf64006b00000000cf64006b00000000a94f6d02a94f6d02a94f6d02248100000100000000000000"
    "00000000000000000010000000000000"
)
DIRENT = bytes.fromhex("0204000000000000030000000000000002000000080000006631000000000000")
FILE = Attributes(1026, False, 300_000, 0x6B0064CF * 10**9 + 0x026D4FA9, 86_400.0)

STRUCTURES = [kind for kind in vars(structs).values() if isinstance(kind, Structure)]
SIZES = {  # sizeof, of the header's 64-bit layouts
    "InHeader": 40, "OutHeader": 16, "InitIn": 64, "InitOut": 64, "OpenOut": 16, "ReadIn": 40, "ReleaseIn": 24,
    "InterruptIn": 8, "Attr": 88, "AttrOut": 16, "EntryOut": 40, "StatfsOut": 80, "Dirent": 24, "InvalEntryOut": 16,
    "InvalInodeOut": 24, "BackingMap": 16,
}  # fmt: skip


def test_parse_the_init_request_of_the_kernel() -> None:
    request = protocol.parse_request(INIT)
    assert (request.opcode, request.unique) == (Opcode.INIT, 2)
    offer = structs.InitIn.unpack(request.message, HEADER)
    assert (offer.major, offer.minor, offer.max_readahead) == (7, 45, 131_072)
    assert FLAGS & protocol.all_flags(offer) == FLAGS


def test_negotiate_accepts_the_flags_of_the_kernel() -> None:
    offer = structs.InitIn.unpack(INIT, HEADER)
    answer = negotiated(offer, FLAGS, 64, 4096)
    assert (answer.major, answer.minor, answer.max_stack_depth) == (7, 45, 2)
    assert protocol.all_flags(answer) == FLAGS


@pytest.mark.parametrize(("minor", "used"), [(40, 40), (44, 44), (45, 45), (46, 45), (99, 45)])
def test_the_lower_minor_version_is_used(minor: int, used: int) -> None:
    assert negotiated(offered(minor=minor), FLAGS, 1, 4096).minor == used


@pytest.mark.parametrize(("major", "minor"), [(7, 39), (7, 12), (6, 45)])
def test_a_kernel_without_passthrough_is_refused(major: int, minor: int) -> None:
    with pytest.raises(protocol.KernelTooOld, match=f"FUSE {major}.{minor}"):
        protocol.negotiate(offered(major=major, minor=minor), FLAGS, 1, 4096)


@pytest.mark.parametrize("missing", [InitFlag.PASSTHROUGH, InitFlag.INIT_EXT])
def test_a_kernel_that_was_built_without_passthrough_is_refused(missing: InitFlag) -> None:
    with pytest.raises(protocol.KernelTooOld):
        protocol.negotiate(offered(flags=int(FLAGS) & ~int(missing)), FLAGS, 1, 4096)


def test_flags_that_the_kernel_does_not_offer_are_not_set() -> None:
    offer = offered(flags=int(InitFlag.PASSTHROUGH | InitFlag.INIT_EXT))
    assert protocol.all_flags(negotiated(offer, FLAGS, 1, 4096)) == protocol.all_flags(offer)


@pytest.mark.parametrize(("page_bytes", "pages"), [(4096, 256), (16384, 64), (65536, 16)])
def test_the_largest_read_is_the_same_for_all_page_sizes(page_bytes: int, pages: int) -> None:
    answer = negotiated(offered(), FLAGS, 1, page_bytes)
    assert (answer.max_pages, answer.max_write) == (pages, 4096)


def offered(major: int = 7, minor: int = 45, flags: int = int(FLAGS)) -> Members:
    return structs.InitIn.members(major, minor, 131_072, flags & 0xFFFFFFFF, flags >> 32)


def negotiated(offer: Members, wanted: InitFlag, max_background: int, page_bytes: int) -> Members:
    return structs.InitOut.unpack(protocol.negotiate(offer, wanted, max_background, page_bytes))


def test_parse_a_lookup() -> None:
    request = protocol.parse_request(LOOKUP)
    assert (request.opcode, request.nodeid, request.tid, protocol.parse_name(request)) == (
        Opcode.LOOKUP,
        1,
        16_905,
        b"a",
    )


def test_parse_an_open_and_pack_its_reply() -> None:
    request = protocol.parse_request(OPEN)
    assert (request.opcode, request.nodeid) == (Opcode.OPEN, 1026)
    assert struct.unpack_from("=II", OPEN, HEADER) == (0x8000, 0)  # fuse_open_in: flags, open_flags
    assert protocol.open_reply(request.unique, 1026, protocol.OpenFlag.PASSTHROUGH, 1) == OPENED
    assert protocol.reply(request.unique, structs.OpenOut.pack(1026, protocol.OpenFlag.PASSTHROUGH, 1)) == OPENED


def test_parse_a_read_and_a_release() -> None:
    read = structs.ReadIn.unpack(READ, HEADER)
    assert (read.fh, read.offset, read.size) == ((1 << 48) + 1, 76, 131_072)
    assert structs.ReleaseIn.unpack(RELEASE, HEADER).fh == 1026


def test_pack_an_entry_of_a_directory() -> None:
    entry = Entry(1026, "f1", 0, FILE.size, FILE.mtime_ns, 3)
    assert encode.entry_out(FILE) == ENTRY
    assert encode.dirent(entry) == DIRENT
    assert encode.direntplus(entry) == ENTRY + DIRENT


@pytest.mark.promise(9)
@pytest.mark.parametrize("name", ["f1", "x", "ü" * 20, "y" * 255, "12345678"])
@pytest.mark.parametrize("is_dir", [0, 1])
def test_the_fast_encoding_of_directory_entries_is_the_same(name: str, is_dir: int) -> None:
    entry = Entry(1026, name, is_dir, 0 if is_dir else FILE.size, FILE.mtime_ns, 3)
    encoded = name.encode()
    head = structs.Dirent.pack(1026, 3, len(encoded), 4 if is_dir else 8)
    assert encode.dirent(entry) == head + encoded + bytes(-len(encoded) % 8)
    assert encode.direntplus(entry) == encode.entry_out(entry.attributes) + encode.dirent(entry)
    if not is_dir:
        assert entry.attributes == FILE


def test_pack_an_error() -> None:
    assert protocol.error_reply(22, 38) == bytes.fromhex("10000000daffffff1600000000000000")


def test_pack_a_notification() -> None:
    message = protocol.inval_entry(7, b"name")
    header = structs.OutHeader.unpack(message)
    assert (header.len, header.error, header.unique) == (len(message), protocol.Notify.INVAL_ENTRY, 0)
    assert structs.InvalEntryOut.unpack(message, 16) == (7, 4, 0)
    assert message[32:] == b"name\0"
    message = protocol.inval_inode(7, 4096, 100)
    header = structs.OutHeader.unpack(message)
    assert (header.len, header.error, header.unique) == (len(message), protocol.Notify.INVAL_INODE, 0)
    assert structs.InvalInodeOut.unpack(message, 16) == (7, 4096, 100)


def test_statx_agrees_with_getattr() -> None:
    answer = encode.statx_out(FILE)
    head = structs.StatxOut.unpack(answer)
    times = structs.StatxTimes.unpack(answer, structs.StatxOut.size)
    attr = structs.Attr.unpack(encode.attr_out(FILE), structs.AttrOut.size)
    assert len(answer) == 288  # fuse_statx_out: 32, and statx(2)'s 256
    assert (head.ino, head.size, head.blocks, head.mode, head.nlink) == (
        attr.ino, attr.size, attr.blocks, attr.mode, attr.nlink,
    )  # fmt: skip
    assert (times.mtime, times.mtime_nsec) == (attr.mtime, attr.mtimensec)


def test_pack_statfs() -> None:
    statfs = structs.StatfsOut.unpack(encode.statfs_out(Capacity(blocks=10, free=4)))
    assert (statfs.blocks, statfs.bfree, statfs.bavail, statfs.files, statfs.bsize, statfs.namelen) == (
        10,
        4,
        4,
        0,
        4096,
        255,
    )


def test_ioctl_numbers_are_those_of_the_kernel() -> None:
    assert (protocol.BACKING_OPEN, protocol.BACKING_CLOSE) == (0x4010E501, 0x4004E502)


@pytest.mark.parametrize("name", SIZES)
def test_structure_sizes_are_those_of_the_kernel(name: str) -> None:
    assert getattr(structs, name).size == SIZES[name]


def values(kind: Structure) -> st.SearchStrategy[Members]:
    """Any values of a structure's members: each over its whole range."""
    codes = [code for code in kind.layout.format.lstrip("=") if code.isalpha() and code != "x"]
    ranges = {"Q": (0, 2**64 - 1), "q": (-(2**63), 2**63 - 1), "I": (0, 2**32 - 1), "i": (-(2**31), 2**31 - 1)}
    return st.tuples(*[st.integers(*ranges.get(code, (0, 2**16 - 1))) for code in codes])


@pytest.mark.parametrize("kind", STRUCTURES, ids=lambda kind: kind.name)
@given(data=st.data())
def test_a_packed_structure_unpacks_to_the_same(kind: Structure, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    packed = kind.pack(*value)
    assert len(packed) == kind.size
    assert kind.unpack(packed) == value
    assert kind.unpack(b"before" + packed + b"after", 6) == value


@pytest.mark.parametrize("kind", STRUCTURES, ids=lambda kind: kind.name)
def test_a_truncated_structure_is_refused(kind: Structure) -> None:
    for length in range(kind.size):
        with pytest.raises(Malformed, match=kind.name):
            kind.unpack(bytes(length))


@pytest.mark.parametrize("message", [b"", INIT[:39], INIT[:-1], INIT + b"x", struct.pack("=I", 4)])
def test_a_message_of_another_length_than_its_header_says_is_refused(message: bytes) -> None:
    with pytest.raises(Malformed):
        protocol.parse_request(message)


@pytest.mark.parametrize("body", [b"", b"name", b"two\0names\0", b"name\0rest"])
def test_a_name_that_does_not_end_with_its_message_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        protocol.parse_name(protocol.FuseRequest(1, 2, 1, 0, bytes(HEADER) + body))
