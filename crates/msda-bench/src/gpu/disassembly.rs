//! The instructions of kernels, by `nvdisasm`: `MSDA_NVDISASM`, or the one beside NVRTC or on
//! `PATH`.

use std::env;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use msda_cuda::driver::Arch;
use msda_trust as trust;

/// The path of `nvdisasm`. The error says why there is none.
pub fn nvdisasm(nvrtc: &str) -> Result<PathBuf, String> {
    let works = |path: &Path| Command::new(path).arg("--version").output().is_ok_and(|o| o.status.success());
    if let Some(named) = env::var_os("MSDA_NVDISASM").filter(|path| !path.is_empty()) {
        let named = trust::check_program(Path::new(&named)).map_err(|why| format!("MSDA_NVDISASM: {why}"))?;
        return if works(&named) {
            Ok(named)
        } else {
            Err(format!("MSDA_NVDISASM: {} does not run", named.display()))
        };
    }
    // Wheels and toolkits have the same folders: lib/libnvrtc.so, bin/nvdisasm.
    let beside = Path::new(nvrtc).parent().and_then(Path::parent).map(|root| root.join("bin/nvdisasm"));
    let found =
        beside.into_iter().chain(trust::find_program(OsStr::new("nvdisasm"))).find(|path| works(path));
    found.ok_or_else(|| "no nvdisasm\nhint: `cargo xtask setup` installs it".into())
}

/// Bytes per instruction, since sm_70.
const INSTRUCTION: usize = 16;

/// The opcodes of a kernel, with their modifiers: `LDG.E.128.CONSTANT`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Code {
    opcodes: Vec<String>,
}

impl Code {
    /// Disassembles the instructions of all kernels by one process: its start takes most of the
    /// time.
    pub fn of(kernels: &[Vec<u8>], arch: Arch, nvdisasm: &Path) -> Result<Vec<Self>, String> {
        let mut file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        file.write_all(&kernels.concat()).map_err(|error| error.to_string())?;
        let output = Command::new(nvdisasm)
            .args(["--binary", &arch.target().replace("sm_", "SM"), "--no-dataflow"])
            .arg(file.path())
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("nvdisasm: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let mut opcodes = Self::parse(&String::from_utf8_lossy(&output.stdout)).opcodes;
        let expected = kernels.concat().len() / INSTRUCTION;
        if opcodes.len() != expected {
            return Err(format!("nvdisasm printed {} instructions, expected {expected}", opcodes.len()));
        }
        let mut next = |kernel: &[u8]| opcodes.drain(..kernel.len() / INSTRUCTION).collect();
        Ok(kernels.iter().map(|kernel| Self { opcodes: next(kernel) }).collect())
    }

    /// Reads lines like `/*0050*/  @!P0 LDG.E.128 R4, [R2.64] ;`.
    fn parse(text: &str) -> Self {
        let opcode = |line: &str| {
            let (offset, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
            offset.chars().all(|c| c.is_ascii_hexdigit()).then_some(())?;
            let mut words = rest.split_whitespace().skip_while(|word| word.starts_with('@') || *word == "{");
            Some(words.next()?.trim_end_matches(';').to_owned())
        };
        Self { opcodes: text.lines().filter_map(opcode).collect() }
    }

    /// The number of instructions, padding included.
    pub fn len(&self) -> usize {
        self.opcodes.len()
    }

    /// Whether there are no instructions.
    pub fn is_empty(&self) -> bool {
        self.opcodes.is_empty()
    }

    /// The number of instructions with a name, such as `LDS`.
    pub fn count(&self, name: &str) -> usize {
        self.named(name).count()
    }

    /// The number of loads or stores with a name and a width in bits. An opcode without a width has
    /// 32 bits; 8 and 16 follow a letter.
    pub fn count_bits(&self, name: &str, bits: u32) -> usize {
        let bits_of = |opcode: &str| {
            let number = |part: &str| part.trim_start_matches(['U', 'S']).parse().ok();
            opcode
                .split('.')
                .skip(1)
                .filter_map(number)
                .find(|n| [8, 16, 32, 64, 128, 256].contains(n))
                .unwrap_or(32)
        };
        self.named(name).filter(|opcode| bits_of(opcode) == bits).count()
    }

    /// The opcode of each instruction, with its modifiers.
    pub fn opcodes(&self) -> &[String] {
        &self.opcodes
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &String> {
        self.opcodes.iter().filter(move |opcode| opcode.split('.').next() == Some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_parsed() {
        let code = Code::parse(
            "\t.headerflags\t@\"EF_CUDA_SM90\"
            /*0000*/                   LDC R1, c[0x0][0x28] ;
            /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
            /*0020*/                   LDG.E.LTC128B.64 R4, [R2.64] ;
            /*0030*/               @P1 LDG.E.U16 R4, [R2.64] ;
            /*0040*/                   LDG.E R4, [R2.64] ;
            /*fff0*/                   NOP;
    ",
        );
        assert_eq!((code.len(), code.count("LDG"), code.count("NOP"), code.count("LD")), (6, 4, 1, 0));
        assert_eq!([128, 64, 32, 16].map(|bits| code.count_bits("LDG", bits)), [1; 4]);
    }
}
