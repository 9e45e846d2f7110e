//! Kernels compiled at run time: from a [`Unit`] to a loaded module, through a cache.
//!
//! Kernels are embedded in the library and compiled by NVRTC for the GPU at hand, once: the result is kept in a
//! folder. Neither a toolkit nor header files are needed, only NVRTC, which comes with torch or a small wheel.

pub mod cache;
mod compiled;
pub mod cubin;
pub mod disassembly;
mod entry;
mod find;
mod nvrtc;
mod search;
mod slots;
mod source;
mod unit;

pub use cache::{Cache, Entry, Jit};
pub use compiled::{Compiled, Resources};
pub use nvrtc::Nvrtc;
pub use search::nvrtc;
pub use source::{KERNELS, Sources};
pub use unit::{Assembled, Unit};

use msda::{ErrorKind, Result};

use crate::driver::{Device, Module};
use slots::Slots;

/// Compiles a unit, whatever the cache has.
pub fn compile(unit: &Unit) -> Result<Compiled> {
    compile_assembled(unit, unit.assemble()?)
}

fn compile_assembled(unit: &Unit, assembled: Assembled) -> Result<Compiled> {
    let nvrtc = nvrtc()?;
    let (cubin, log) = nvrtc.compile(unit)?;
    Ok(Compiled { cubin, log, source: assembled.text, compiler: nvrtc.name() })
}

/// A unit on a device, from the process's memory, the cache or the compiler. However many ask at once, it is loaded
/// once.
pub fn load(device: &Device, unit: &Unit) -> Result<Module> {
    static LOADED: Slots<(usize, [u8; 32]), Module> = Slots::new();
    let assembled = unit.assemble()?;
    LOADED.get((device.ordinal(), assembled.hash), || {
        let cache = Cache::global();
        let found = cache.get_assembled(unit, assembled)?;
        match device.load(&found.cubin) {
            // Of no use to this driver. Whatever else went wrong would go wrong again.
            Err(why) if why.kind() == ErrorKind::Format => device.load(&cache.renew(unit, &why)?.cubin),
            loaded => loaded,
        }
    })
}
