//! Facts about kernels from a cubin, which is a 64-bit little-endian ELF file.

use elf::ElfBytes;
use elf::endian::LittleEndian;
use elf::section::SectionHeader;

/// The attribute of `.nv.info.<kernel>` that describes a parameter.
const PARAMETER: u8 = 0x17;
/// The attribute of `.nv.info` with the number of registers of a kernel.
const REGISTERS: u8 = 0x2f;

type Elf<'a> = ElfBytes<'a, LittleEndian>;

/// Bytes of a kernel's parameters, without padding. `None` when the cubin has no such kernel or is
/// malformed.
pub fn parameter_bytes(cubin: &[u8], kernel: &str) -> Option<usize> {
    let all = attributes(section(cubin, &format!(".nv.info.{kernel}"))?)?;
    // Eight bytes with index and offset, then flags with the size in the highest 14 bits.
    let sizes =
        all.iter().filter(|(kind, _)| *kind == PARAMETER).map(|(_, value)| Some(word(value, 2)? >> 18));
    sizes.reduce(|a, b| Some(a? + b?))?
}

/// The instructions of a kernel; empty when the cubin has no such kernel.
pub fn instructions<'a>(cubin: &'a [u8], kernel: &str) -> &'a [u8] {
    section(cubin, &format!(".text.{kernel}")).unwrap_or_default()
}

/// Registers per thread of a kernel. `None` when the cubin has no such kernel or is malformed.
pub fn registers(cubin: &[u8], kernel: &str) -> Option<usize> {
    let (symbols, names) = Elf::minimal_parse(cubin).ok()?.symbol_table().ok()??;
    let all = attributes(section(cubin, ".nv.info")?)?;
    // The index of the kernel's symbol and the number.
    let own = |(kind, value): &&(u8, &[u8])| {
        let symbol = word(value, 0).and_then(|at| symbols.get(at).ok());
        *kind == REGISTERS
            && symbol.is_some_and(|s| names.get(s.st_name as usize).is_ok_and(|name| name == kernel))
    };
    word(all.iter().find(own)?.1, 1)
}

/// Bytes of static shared memory per block of a kernel, with those that the system reserves.
pub fn shared_bytes(cubin: &[u8], kernel: &str) -> usize {
    let found = Elf::minimal_parse(cubin).ok().and_then(|elf| header(&elf, &format!(".nv.shared.{kernel}")));
    found.map_or(0, |header| header.sh_size as usize)
}

fn header(elf: &Elf<'_>, name: &str) -> Option<SectionHeader> {
    elf.section_header_by_name(name).ok()?
}

fn section<'a>(cubin: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let elf = Elf::minimal_parse(cubin).ok()?;
    Some(elf.section_data(&header(&elf, name)?).ok()?.0)
}

/// Kinds and values of attributes. Each begins with a format, a kind, and two bytes with the value
/// or with the size of the value that follows.
fn attributes(mut info: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut all = Vec::new();
    while let Some((&[format, kind, low, high], rest)) = info.split_first_chunk() {
        let size = if format == 4 { u16::from_le_bytes([low, high]) } else { 0 };
        let (value, next) = rest.split_at_checked(size.into())?;
        all.push((kind, value));
        info = next;
    }
    Some(all)
}

/// A number of four bytes.
fn word(value: &[u8], at: usize) -> Option<usize> {
    value.as_chunks().0.get(at).map(|&bytes| u32::from_le_bytes(bytes) as usize)
}
