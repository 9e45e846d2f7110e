//! Each instruction set of this machine, and the oracle itself, pass the battery.

use msda::{Cpu, Isa};

mod oracle {
    msda::conformance!(msda::oracle::Oracle);
}

mod best {
    msda::conformance!(msda::Cpu::new());
}

mod portable {
    msda::conformance!(msda::Cpu::with_isa(msda::Isa::Portable).unwrap());
}

/// On a machine without AVX2 this prints that it was skipped.
mod avx2 {
    fn backend() -> msda::Cpu {
        super::or_best(msda::Isa::Avx2)
    }
    msda::conformance!(backend());
}

fn or_best(isa: Isa) -> Cpu {
    Cpu::with_isa(isa).unwrap_or_else(|why| {
        eprintln!("skipped {isa}: {why}");
        Cpu::new()
    })
}
