//! Facts about kernels from a cubin, which is a 64-bit little-endian ELF file.

/// The attribute of `.nv.info.<kernel>` that describes a parameter.
const PARAMETER: u8 = 0x17;
/// The attribute of `.nv.info` with the number of registers of a kernel.
const REGISTERS: u8 = 0x2f;

/// Bytes of a kernel's parameters, without padding. `None` when the cubin has no such kernel or is
/// malformed.
pub fn parameter_bytes(cubin: &[u8], kernel: &str) -> Option<usize> {
    let info = section(cubin, &format!(".nv.info.{kernel}"))?;
    // An attribute: format, kind, and two bytes with the value or with the size of the value that
    // follows.
    let (mut at, mut bytes) = (0, None);
    while at + 4 <= info.len() {
        let (format, kind, value) = (info[at], info[at + 1], number(info, at + 2, 2)?);
        if kind == PARAMETER {
            // Eight bytes with index and offset, then flags with the size in the highest 14 bits.
            bytes = Some(bytes.unwrap_or(0) + (number(info, at + 12, 4)? >> 18));
        }
        at += if format == 4 { 4 + value } else { 4 };
    }
    bytes
}

/// The instructions of a kernel; empty when the cubin has no such kernel.
pub fn instructions<'a>(cubin: &'a [u8], kernel: &str) -> &'a [u8] {
    section(cubin, &format!(".text.{kernel}")).unwrap_or_default()
}

/// Registers per thread of a kernel. `None` when the cubin has no such kernel or is malformed.
pub fn registers(cubin: &[u8], kernel: &str) -> Option<usize> {
    let (info, symbols, names) =
        (section(cubin, ".nv.info")?, section(cubin, ".symtab")?, section(cubin, ".strtab")?);
    let mut at = 0;
    while at + 4 <= info.len() {
        let (format, kind, value) = (info[at], info[at + 1], number(info, at + 2, 2)?);
        // The index of the kernel's symbol and the number. A symbol has 24 bytes and begins with
        // the offset of its name.
        if kind == REGISTERS {
            let name = number(symbols, number(info, at + 4, 4)?.checked_mul(24)?, 4)?;
            if text(names, name)? == kernel.as_bytes() {
                return number(info, at + 8, 4);
            }
        }
        at += if format == 4 { 4 + value } else { 4 };
    }
    None
}

/// Bytes of static shared memory per block of a kernel, with those that the system reserves.
pub fn shared_bytes(cubin: &[u8], kernel: &str) -> usize {
    extent(cubin, &format!(".nv.shared.{kernel}")).map_or(0, |(_, bytes)| bytes)
}

/// A section by its name.
fn section<'a>(elf: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (start, bytes) = extent(elf, name)?;
    elf.get(start..start.checked_add(bytes)?)
}

/// The offset and size of a section. A section that is only reserved has no bytes in the file.
fn extent(elf: &[u8], name: &str) -> Option<(usize, usize)> {
    elf.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let (headers, size) = (number(elf, 0x28, 8)?, number(elf, 0x3a, 2)?);
    let (count, names) = (number(elf, 0x3c, 2)?, number(elf, 0x3e, 2)?);
    let extent = |i: usize| {
        let header = headers + i * size;
        Some((number(elf, header + 0x18, 8)?, number(elf, header + 0x20, 8)?))
    };
    let (start, bytes) = extent(names)?;
    let names = elf.get(start..start.checked_add(bytes)?)?;
    (0..count).find_map(|i| {
        let own = text(names, number(elf, headers + i * size, 4)?)?;
        if own == name.as_bytes() { extent(i) } else { None }
    })
}

/// Text up to a zero byte.
fn text(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    Some(&rest[..rest.iter().position(|&byte| byte == 0)?])
}

/// A number of `size` bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
}
