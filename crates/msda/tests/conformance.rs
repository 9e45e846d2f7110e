//! Every instruction set this machine has, and the oracle itself, pass the battery.

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

/// Where the machine lacks AVX2, this says so instead of passing silently.
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
