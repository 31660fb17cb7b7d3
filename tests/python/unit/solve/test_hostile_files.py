"""Files that nobody means: each is an error with a code, at once and without much memory."""

import gzip
import json
import os
import re
import struct
import time
import zlib
from functools import partial
from pathlib import Path

import pytest

from shardwright.errors import ProblemError
from shardwright.solve import solve_ilp

MIB = 2**20
NODES = '"nodes":{"intervals":[[0,2],[1,3]],"costs":[[1,2],[3,4]],"usages":[[5,6],[7,8]]}'
EDGES = '"edges":{"nodes":[[0,1]],"costs":[[0,4,5,6]]}'
GOOD = f'{{"problem":{{"name":"good",{NODES},{EDGES},"usage_limit":99}}}}'


def problem(parts):
    return f'{{"problem":{{{parts}}}}}'.encode()


def bomb(head, unit, tail):
    """Gzip of head, unit repeated to 64 MiB, tail, made when asked for."""
    return partial(packed, head, unit, tail)


def packed(head, unit, tail):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(head)]
    chunk = unit * (MIB // len(unit))
    parts += [packer.compress(chunk) for _ in range(64)]
    return b"".join([*parts, packer.compress(tail), packer.flush()])


def damaged(kind):
    whole = bytearray(gzip.compress(GOOD.encode() * 40))
    if kind == "sum":
        whole[-8] ^= 1
    elif kind == "length":
        whole[-4:] = struct.pack("<I", 5)
    elif kind == "stream":
        whole[len(whole) // 2] ^= 0xFF
    else:
        del whole[-12:]
    return bytes(whole)


CONTENT = {
    "nothing": b"",
    "blanks": b" \n\t",
    "zero bytes": bytes(4096),
    "16 MiB of blanks": b" " * (16 * MIB),
    "16 MiB of zero bytes": bytes(16 * MIB),
    "16 MiB of brackets": b"[" * (16 * MIB),
    "16 MiB of braces": b'{"problem":' * (MIB + MIB // 2),
    "16 MiB of digits": b'{"problem":{"usage_limit":' + b"1" * (16 * MIB),
    "16 MiB of leading zeros": b'{"problem":{"usage_limit":' + b"0" * (16 * MIB),
    "16 MiB name": problem('"name":"' + "x" * (16 * MIB) + '"'),
    "16 MiB key": b'{"' + b"k" * (16 * MIB) + b'":1}',
    "16 MiB of costs": problem('"nodes":{"costs":[[' + "1," * (8 * MIB) + "1]]}"),
    "16 MiB of bytes": problem('"nodes":{"usages":[[' + "1," * (8 * MIB) + "1]]}"),
    "16 MiB interval": problem('"nodes":{"intervals":[[' + "1," * (8 * MIB) + "1]]}"),
    "16 MiB edge": problem(f'{NODES},"edges":{{"nodes":[[' + "1," * (8 * MIB) + "1]]}"),
    "16 MiB table": problem(
        f'{NODES},"edges":{{"nodes":[[0,1]],"costs":[[' + "1," * (8 * MIB) + "1]]}"
    ),
    "bomb of blanks": bomb(b"", b" ", b"{}"),
    "bomb of blanks and lines": bomb(b'{"problem":', b" " * 1000 + b"\n", b"{}}"),
    "bomb of zero bytes": bomb(b"", b"\0", b""),
    "bomb of brackets": bomb(b"", b"[", b""),
    "bomb of a name": bomb(b'{"problem":{"name":"', b"x", b'"}}'),
    "bomb of empty lists": bomb(b'{"problem":{"nodes":{"costs":[', b"[],", b"[]]}}}"),
    "bomb of intervals": bomb(b'{"problem":{"nodes":{"intervals":[', b"[0,1],", b"[0,1]]}}}"),
    "bomb of tables": bomb(b'{"problem":{"edges":{"costs":[', b"[0],", b"[0]]}}}"),
    "bomb of one table": bomb(b'{"problem":{"edges":{"costs":[[', b"0,", b"0]]}}}"),
    "bomb of edges": bomb(b'{"problem":{"edges":{"nodes":[', b"[0,1],", b"[0,1]]}}}"),
    "bomb inside a bomb": gzip.compress(packed(b"", b" ", b"")),
    "gzip mark alone": b"\x1f\x8b",
    "gzip of nothing": gzip.compress(b""),
    "gzip of a number": gzip.compress(b"5"),
    "gzip cut short": damaged("cut"),
    "gzip with a wrong sum": damaged("sum"),
    "gzip with a wrong length": damaged("length"),
    "gzip with a flipped byte": damaged("stream"),
    "gzip twice": gzip.compress(gzip.compress(GOOD.encode())),
    "zip": b"PK\x03\x04" + bytes(100),
    "pickle": b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.",
    "utf-16": GOOD.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "latin-1 name": problem('"name":"café"').decode().encode("latin-1"),
    "latin-1 key": b'{"probl\xe8me":{}}',
    "half a surrogate": b'{"problem":{"name":"\xed\xa0\x80"}}',
    "control character": b'{"problem":{"name":"a\x01b"}}',
    "zero byte in a name": b'{"problem":{"name":"a\0b"}}',
    "lines of json": GOOD.encode() + b"\n" + GOOD.encode(),
    "comment": b"// a problem\n" + GOOD.encode(),
    "single quotes": GOOD.replace('"', "'").encode(),
    "trailing comma": GOOD.replace("99}", "99,}").encode(),
    "not a number": GOOD.replace("99", "NaN").encode(),
    "infinity": GOOD.replace("99", "Infinity").encode(),
    "minus infinity": GOOD.replace("99", "-Infinity").encode(),
    "minus alone": GOOD.replace("99", "-").encode(),
    "two minus": GOOD.replace("99", "--9").encode(),
    "plus": GOOD.replace("99", "+9").encode(),
    "exponent": GOOD.replace("99", "1e2").encode(),
    "fraction": GOOD.replace("99", "99.0").encode(),
    "hexadecimal": GOOD.replace("99", "0x63").encode(),
    "digits of another script": GOOD.replace("99", "٩٩").encode(),
    "2^63": GOOD.replace("99", str(2**63)).encode(),
    "-2^63": GOOD.replace("99", str(-(2**63))).encode(),
    "2^64 + 99": GOOD.replace("99", str(2**64 + 99)).encode(),
    "10^400": GOOD.replace("99", "1" + "0" * 400).encode(),
    "true": GOOD.replace("99", "true").encode(),
    "null": GOOD.replace("99", "null").encode(),
    "text": GOOD.replace("99", '"99"').encode(),
    "list": GOOD.replace("99", "[99]").encode(),
    "negative limit": GOOD.replace("99", "-1").encode(),
    "negative bytes": GOOD.replace("[5,6]", "[5,-6]").encode(),
    "bytes past 2^60": GOOD.replace("[5,6]", f"[5,{2**61}]").encode(),
    "bytes that sum past 2^60": GOOD.replace("[5,6]", f"[5,{2**60}]").encode(),
    "costs past -2^60": GOOD.replace("[1,2]", f"[1,{-(2**61)}]").encode(),
    "costs that sum past -2^60": GOOD.replace("[1,2]", f"[1,{-(2**60)}]").encode(),
    "two limits": GOOD.replace("99", '99,"usage_limit":98').encode(),
    "two nodes": problem(f"{NODES},{NODES}"),
    "unknown key": GOOD.replace("usage_limit", "memory_limit").encode(),
    "edge to itself and beyond": GOOD.replace("[[0,1]]", "[[1,2]]").encode(),
    "edge to a negative node": GOOD.replace("[[0,1]]", "[[0,-1]]").encode(),
    "edge of three nodes": GOOD.replace("[[0,1]]", "[[0,1,1]]").encode(),
    "edge to node 2^32": GOOD.replace("[[0,1]]", f"[[0,{2**32}]]").encode(),
    "table too short": GOOD.replace("[0,4,5,6]", "[0,4,5]").encode(),
    "table too long": GOOD.replace("[0,4,5,6]", "[0,4,5,6,7]").encode(),
    "node without strategies": GOOD.replace("[1,2]", "[]").encode(),
    "fewer bytes than costs": GOOD.replace("[5,6]", "[5]").encode(),
    "fewer intervals than nodes": GOOD.replace("[[0,2],[1,3]]", "[[0,2]]").encode(),
    "interval of three": GOOD.replace("[0,2]", "[0,2,4]").encode(),
    "object for a list": GOOD.replace("[[0,1]]", '{"0":[0,1]}').encode(),
    "nested lists of costs": GOOD.replace("[1,2]", "[[1],[2]]").encode(),
}


def peak_bytes():
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) * 1024


def refused(path):
    """The code of the error, after checking time and memory."""
    # Writing 5 starts the peak of this process's memory anew.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    memory, start = peak_bytes(), time.process_time()
    with pytest.raises(ProblemError) as caught:
        solve_ilp(path)
    seconds = time.process_time() - start
    assert seconds < 0.1, f"{seconds:.3f} CPU s"
    assert peak_bytes() - memory < 64 * MIB
    message = str(caught.value)
    assert len(message) < 10_000
    assert "\n  try: " in message
    return caught.value.code


def test_there_are_sixty_kinds():
    assert len(CONTENT) >= 60
    assert solve_in_memory(GOOD) == "optimal"


def solve_in_memory(text):
    return solve_ilp(json.loads(text)).status


@pytest.mark.parametrize("kind", CONTENT)
def test_hostile_content_is_refused_at_once(kind, tmp_path):
    path = tmp_path / "problem.json"
    content = CONTENT[kind]
    path.write_bytes(content() if callable(content) else content)
    assert refused(path) in {"E211", "E212", "E213"}


def test_file_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "problem.json"
    for length in range(len(GOOD)):
        path.write_text(GOOD[:length])
        with pytest.raises(ProblemError) as caught:
            solve_ilp(path)
        assert caught.value.code == "E212", length


def test_paths_that_are_no_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    paths = [
        tmp_path,
        tmp_path / "pipe",
        tmp_path / "loop",
        tmp_path / "nowhere",
        tmp_path / "gone",
    ]
    paths += ["/dev/zero", "/dev/null", "", "x" * 5000, "a\0b"]
    for path in paths:
        assert refused(path) == "E212", path


def test_name_of_a_file_may_be_any_bytes(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.json"
    with pytest.raises(ProblemError, match="E212"):
        solve_ilp(path)
    Path(os.fsdecode(path)).write_text(GOOD)
    assert solve_ilp(os.fsdecode(path)).status == "optimal"


def test_bytes_path_is_a_path(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(GOOD)
    result = solve_ilp(os.fsencode(path))
    assert result.file == str(path)
    assert json.loads(result.to_json())["cost"] == result.cost
