"""The compiled part uses stable interfaces only: of torch, of CPython, of the system."""

from __future__ import annotations

import pathlib
import re
import shutil
import struct
import subprocess
import sys

import pytest
from msda_attn import _native

FILE = pathlib.Path(_native.__file__)
SOURCE = pathlib.Path(__file__).parents[1] / "src" / "torch" / "abi.rs"
# The only name that is looked up and is not torch's: a function of the OpenMP standard.
OPENMP = "omp_get_max_threads"

elf = pytest.mark.skipif(FILE.read_bytes()[:5] != b"\x7fELF\x02", reason="reads 64-bit ELF files")


def sections(data: bytes) -> dict[int, tuple[int, int, int]]:
    """Sections of an ELF file by type: offset, size, and offset of the linked string table."""
    start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    # sh_name, sh_type, sh_flags, sh_addr, sh_offset, sh_size, sh_link, ...
    headers = [struct.unpack_from("<IIQQQQI", data, start + 64 * i) for i in range(count)]
    return {h[1]: (h[4], h[5], headers[h[6]][4]) for h in headers}


def text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def needed_libraries(data: bytes) -> list[str]:
    offset, size, strings = sections(data)[6]
    entries = struct.iter_unpack("<QQ", data[offset : offset + size])
    return [text(data, strings + value) for tag, value in entries if tag == 1]


def undefined_symbols(data: bytes) -> list[str]:
    offset, size, strings = sections(data)[11]
    # st_name, st_info, st_other, st_shndx, st_value, st_size
    entries = struct.iter_unpack("<IBBHQQ", data[offset : offset + size])
    return [text(data, strings + name) for name, _, _, at, _, _ in entries if name and at == 0]


def looked_up() -> list[str]:
    """The names that the compiled part asks torch's libraries for."""
    if not SOURCE.is_file():
        pytest.skip(f"{SOURCE} is not there: this is not a checkout of the repository")
    source = SOURCE.read_text(encoding="utf-8")
    tables = re.findall(r"^        (\w+): fn\(", source, re.MULTILINE)
    single = re.findall(r'library\.get::<\w+>\("(\w+)\\0"\)', source)
    # Every lookup is in one of both forms: the macro of the tables has one more.
    assert source.count("library.get") == len(single) + 1
    assert len(tables) > 20 and len(single) == 2
    return [*tables, *single]


@elf
def test_it_is_not_linked_to_torch_or_python():
    system = {"libc", "libm", "libgcc_s", "libpthread", "libdl", "librt", "ld-linux-x86-64"}
    system |= {"ld-linux-aarch64"}
    libraries = {name.split(".so")[0] for name in needed_libraries(FILE.read_bytes())}
    assert "libc" in libraries and libraries <= system


@elf
def test_its_symbols_are_those_of_the_system_and_of_python():
    symbols = undefined_symbols(FILE.read_bytes())
    python = [name for name in symbols if re.match(r"_?Py", name)]
    assert len(python) > 30
    # C++ names, of torch or of anybody, begin so.
    assert not [name for name in symbols if name.startswith("_Z")]
    assert not [name for name in symbols if re.match(r"aoti_|torch_|THP|c10|cu[A-Z]|nvrtc", name)]
    # The stable ABI has few names that begin with an underscore.
    allowed = {"Dealloc", "DecRef", "IncRef", "NoneStruct", "TrueStruct", "FalseStruct"}
    private = {name for name in python if name.startswith("_")}
    assert private <= {f"_Py_{name}" for name in allowed}


def test_the_file_is_named_for_the_stable_abi():
    assert FILE.name in ("_native.abi3.so", "_native.pyd")


def test_torch_declares_every_function_in_its_stable_headers():
    torch = pytest.importorskip("torch", reason="compares with torch's headers")
    folder = pathlib.Path(torch.__file__).parent / "include" / "torch" / "csrc"
    files = [folder / "inductor/aoti_torch/c/shim.h", folder / "stable/c/shim.h"]
    declared = "".join(file.read_text() for file in files if file.is_file())
    assert "aoti_torch_get_data_ptr" in declared
    # From torch 2.10 on; msda works without it.
    optional = {"torch_get_num_threads"}
    for name in set(looked_up()) - {OPENMP}:
        assert name.startswith(("aoti_torch_", "torch_")), name
        assert re.search(rf"\b{name}\(", declared) or name in optional, name


def test_the_names_are_in_the_compiled_part():
    data = FILE.read_bytes()
    missing = [name for name in looked_up() if f"{name}\0".encode() not in data]
    assert not missing


def test_torch_abi_audit_agrees():
    """torch-abi-audit of PyPI sees symbols only: nothing of torch, and abi3."""
    program = shutil.which("torch-abi-audit", path=str(pathlib.Path(sys.executable).parent))
    if program is None:
        pytest.skip("torch-abi-audit is not installed")
    done = subprocess.run(
        [program, str(FILE), "--check", "both", "--verbose"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "abi3-ok" in done.stdout and "NO-TORCH" in done.stdout
