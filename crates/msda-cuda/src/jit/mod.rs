//! Kernels compiled at run time: from a [`Unit`] to a loaded module, through a cache.
//!
//! Kernel sources are embedded in the library. NVRTC compiles them for the GPU once, and the result
//! is stored in a folder. No toolkit and no header files are needed, only NVRTC, which comes with
//! torch or a small wheel.

pub mod cache;
mod compiled;
mod entry;
mod find;
mod nvrtc;
mod once;
mod search;
mod source;
mod unit;

pub use cache::{Cache, Entry, Jit};
pub use compiled::{Compiled, Resources};
pub use nvrtc::Nvrtc;
pub use search::{add_packages, nvrtc, untrusted};
pub use source::{KERNELS, Sources};
pub use unit::{Assembled, Unit};

use msda::{ErrorKind, Result};

use crate::driver::{Device, Module};
use once::OncePerKey;
use unit::Identity;

/// Compiles a unit without the cache.
pub fn compile(unit: &Unit) -> Result<Compiled> {
    compile_assembled(unit, unit.assemble()?)
}

fn compile_assembled(unit: &Unit, assembled: Assembled) -> Result<Compiled> {
    let nvrtc = nvrtc()?;
    let (cubin, log) = nvrtc.compile(unit)?;
    Ok(Compiled { cubin, log, source: assembled.text, compiler: nvrtc.identity() })
}

/// A unit loaded on a device: from memory, else from the cache, else from the compiler. It is
/// loaded once, also when several threads ask at the same time.
///
/// A unit that is loaded already is found by its macros, without its source: that takes about a
/// microsecond.
///
/// Modules are never unloaded: a captured launch may outlive its plan. There is one per device and
/// set of macros. Macros do not depend on image sizes, unless a request asks for
/// [fixed sizes](crate::Sizes::Fixed), so a program has as many as it has kinds of layers.
pub fn load(device: &Device, unit: &Unit) -> Result<Module> {
    static LOADED: OncePerKey<(usize, Identity), Module> = OncePerKey::new(usize::MAX);
    LOADED.get((device.ordinal(), unit.identity()?), || {
        let cache = Cache::global();
        let found = cache.get(unit)?;
        match device.load(&found.cubin) {
            // This driver cannot use it. Other failures would happen again.
            Err(why) if why.kind() == ErrorKind::Format => {
                device.load(&cache.renew(unit, &found.cubin, &why)?.cubin)
            }
            loaded => loaded,
        }
    })
}
