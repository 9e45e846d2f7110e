//! What a cubin says about its kernels: it is an ELF file, little-endian, of 64 bits.

/// The attribute of `.nv.info.<kernel>` that describes a parameter.
const PARAMETER: u8 = 0x17;
/// The attribute of `.nv.info` that says how many registers a kernel has.
const REGISTERS: u8 = 0x2f;

/// Bytes of a kernel's parameters, without what aligns them. `None` when the cubin has no such kernel or is not understood.
pub fn parameter_bytes(cubin: &[u8], kernel: &str) -> Option<usize> {
    let info = section(cubin, &format!(".nv.info.{kernel}"))?;
    // Attributes: a format, a kind and two bytes, which are the value or the size of what follows.
    let (mut at, mut bytes) = (0, None);
    while at + 4 <= info.len() {
        let (format, kind, value) = (info[at], info[at + 1], number(info, at + 2, 2)?);
        if kind == PARAMETER {
            // Eight bytes that say which it is and where, then flags with the size in the highest 14 bits.
            bytes = Some(bytes.unwrap_or(0) + (number(info, at + 12, 4)? >> 18));
        }
        at += if format == 4 { 4 + value } else { 4 };
    }
    bytes
}

/// A kernel's instructions; none when the cubin has no such kernel.
pub fn instructions<'a>(cubin: &'a [u8], kernel: &str) -> &'a [u8] {
    section(cubin, &format!(".text.{kernel}")).unwrap_or_default()
}

/// Registers a thread of a kernel. `None` when the cubin has no such kernel or is not understood.
pub fn registers(cubin: &[u8], kernel: &str) -> Option<usize> {
    let (info, symbols, names) =
        (section(cubin, ".nv.info")?, section(cubin, ".symtab")?, section(cubin, ".strtab")?);
    let mut at = 0;
    while at + 4 <= info.len() {
        let (format, kind, value) = (info[at], info[at + 1], number(info, at + 2, 2)?);
        // Eight bytes: the kernel's symbol, of 24 bytes that begin with where its name is, and the number.
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

/// Bytes of static shared memory of a kernel's blocks, with those that the system keeps for itself.
pub fn shared_bytes(cubin: &[u8], kernel: &str) -> usize {
    place(cubin, &format!(".nv.shared.{kernel}")).map_or(0, |(_, bytes)| bytes)
}

/// A section by its name.
fn section<'a>(elf: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (start, bytes) = place(elf, name)?;
    elf.get(start..start.checked_add(bytes)?)
}

/// Where a section is, and its size; what is only reserved has no bytes there.
fn place(elf: &[u8], name: &str) -> Option<(usize, usize)> {
    elf.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let (headers, size) = (number(elf, 0x28, 8)?, number(elf, 0x3a, 2)?);
    let (count, names) = (number(elf, 0x3c, 2)?, number(elf, 0x3e, 2)?);
    let place = |i: usize| {
        let header = headers + i * size;
        Some((number(elf, header + 0x18, 8)?, number(elf, header + 0x20, 8)?))
    };
    let (start, bytes) = place(names)?;
    let names = elf.get(start..start.checked_add(bytes)?)?;
    (0..count).find_map(|i| {
        let own = text(names, number(elf, headers + i * size, 4)?)?;
        if own == name.as_bytes() { place(i) } else { None }
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
