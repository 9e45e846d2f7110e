"""Checks a wheel by name: what its compiled part exports and needs, and its size."""

import re
import sys
import zipfile

import lief

lief.logging.disable()

MOST_BYTES = 10_000_000
NEWEST_GLIBC = (2, 17)
EXPORTS = {"PyInit__native", "RegisterCustomOps"}
# The libraries that every system of a kind has. A wheel brings none of its own.
LIBRARIES = {
    "ELF": r"(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux-.*)\.so(\.\d+)?",
    "MACHO": r"/usr/lib/lib(System\.B|iconv\.2|charset\.1)\.dylib",
    "PE": r"(kernel32|ntdll|ucrtbase|msvcrt|api-ms-win-.*|bcryptprimitives|ws2_32|userenv|python3)\.dll",
}


def problems(wheel: str) -> list[str]:
    """What a release must not have."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        compiled = [name for name in names if re.search(r"\.(so|pyd|dll|dylib)$", name)]
        code = [archive.read(name) for name in compiled]
        bytes_of_wheel = sum(entry.compress_size for entry in archive.infolist())
    found = []
    if bytes_of_wheel > MOST_BYTES:
        found.append(f"size: got {bytes_of_wheel}, expected at most {MOST_BYTES} bytes")
    if len(compiled) != 1 or not compiled[0].startswith("msda_attn/_native."):
        return [*found, f"compiled files: got {compiled}, expected msda_attn/_native alone"]
    for licence in ("LICENSE-MIT", "LICENSE-APACHE", "LICENSE-THIRD-PARTY"):
        if not any(name.endswith(licence) for name in names):
            found.append(f"files: {licence} is missing")
    binary = lief.parse(code[0])
    form = binary.format.name
    exported = {function.name.removeprefix("_" * (form == "MACHO")) for function in exports(binary)}
    # The linker for macOS exports all names. There they belong to the library that has them.
    if not EXPORTS <= exported or (form != "MACHO" and exported != EXPORTS):
        found.append(f"exports: got {sorted(exported)[:9]}, expected {sorted(EXPORTS)}")
    allowed = re.compile(LIBRARIES[form], re.IGNORECASE)
    for library in libraries(binary):
        if not allowed.fullmatch(library):
            found.append(f"libraries: got {library}, expected a match of {allowed.pattern}")
    if form == "ELF":
        versions = [
            aux.name
            for need in binary.symbols_version_requirement
            for aux in need.get_auxiliary_symbols()
        ]
        for version in versions:
            number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
            if number and tuple(map(int, number.group(1, 2))) > NEWEST_GLIBC:
                found.append(f"symbol versions: got {version}, expected GLIBC_2.17 or older")
    if form == "MACHO" and binary.header.cpu_type.name == "ARM64" and not binary.has_code_signature:
        found.append("signature: got none; Apple's processors run no code without one")
    return found


def exports(binary):
    return binary.get_export().entries if binary.format.name == "PE" else binary.exported_functions


def libraries(binary) -> list[str]:
    """The names of the libraries that the loader must find."""
    if binary.format.name == "MACHO":
        kind = lief.MachO.LoadCommand.TYPE.ID_DYLIB
        return [entry.name for entry in binary.libraries if entry.command != kind]
    return [getattr(entry, "name", entry) for entry in binary.libraries]


if __name__ == "__main__":
    failed = False
    for wheel in sys.argv[1:]:
        for problem in problems(wheel):
            failed = True
            print(f"error: {wheel}: {problem}", file=sys.stderr)
    sys.exit(failed)
