//! The part of L2 that is set aside for persisting lines.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::transmute;
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::CUlimit;
use msda::{Error, ErrorKind, Result};

use msda_cuda::driver::{Device, check, symbol};
use msda_cuda::kernels::{Owned, Resource};

/// The driver's functions, which return plain numbers: a newer driver has codes that older headers
/// lack.
struct Functions {
    get_limit: GetLimit,
    set_limit: SetLimit,
    reset: Reset,
}

type GetLimit = unsafe extern "C" fn(*mut usize, CUlimit) -> u32;
type SetLimit = unsafe extern "C" fn(CUlimit, usize) -> u32;
type Reset = unsafe extern "C" fn() -> u32;

const LIMIT: CUlimit = CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE;

fn functions() -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<Result<Functions>> = OnceLock::new();
    let found = FUNCTIONS.get_or_init(|| {
        let (get, set) = (symbol("cuCtxGetLimit")?, symbol("cuCtxSetLimit")?);
        let reset = symbol("cuCtxResetPersistingL2Cache")?;
        // SAFETY: the types are those of cuda.h.
        Ok(unsafe {
            Functions {
                get_limit: transmute::<*const c_void, GetLimit>(get),
                set_limit: transmute::<*const c_void, SetLimit>(set),
                reset: transmute::<*const c_void, Reset>(reset),
            }
        })
    });
    found.as_ref().map_err(Clone::clone)
}

/// As much of L2 for persisting lines as the device allows, while a plan lives.
#[derive(Debug)]
pub(crate) struct Persisting;

impl Resource for Persisting {
    fn bytes(&self) -> usize {
        0
    }

    fn make(&self, device: &Device) -> Result<Box<dyn Owned>> {
        Ok(Box::new(SetAside::new(device)?))
    }
}

/// A device with a part of L2 set aside.
#[derive(Debug)]
struct Entry {
    device: Device,
    users: usize,
    /// The limit before the first user.
    before: usize,
}

/// The devices with a part set aside: the last user of each puts the limit back.
static SET_ASIDE: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// One user of the part of L2 that is set aside.
#[derive(Debug)]
struct SetAside(Device);

impl SetAside {
    fn new(device: &Device) -> Result<Self> {
        let (most, _) = device.persisting_l2();
        if most == 0 {
            let subject = "persisting lines in L2";
            return Err(Error::new(
                ErrorKind::Unsupported,
                subject,
                device.name(),
                "a device with such lines",
            ));
        }
        let mut entries = SET_ASIDE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.device == *device) {
            entry.users += 1;
            return Ok(Self(device.clone()));
        }
        let (functions, _bound) = (functions()?, device.bind_relaxed()?);
        let mut before = 0;
        // SAFETY: a context is current; `before` is valid to write.
        check("cuCtxGetLimit", unsafe { (functions.get_limit)(&mut before, LIMIT) })?;
        // SAFETY: a context is current.
        check("cuCtxSetLimit", unsafe { (functions.set_limit)(LIMIT, most) })?;
        entries.push(Entry { device: device.clone(), users: 1, before });
        Ok(Self(device.clone()))
    }
}

impl Owned for SetAside {
    /// Kernels need no address of it.
    fn word(&self, _index: usize) -> u64 {
        0
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let mut entries = SET_ASIDE.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = entries.iter().position(|entry| entry.device == self.0) else { return };
        entries[at].users -= 1;
        if entries[at].users > 0 {
            return;
        }
        let entry = entries.swap_remove(at);
        if let (Ok(functions), Ok(_bound)) = (functions(), self.0.bind_relaxed()) {
            // SAFETY: a context is current. A failure has no one to report to.
            let _ = unsafe { (functions.reset)() };
            // SAFETY: as above.
            let _ = unsafe { (functions.set_limit)(LIMIT, entry.before) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(device: &Device) -> usize {
        let (functions, _bound) = (functions().unwrap(), device.bind().unwrap());
        let mut bytes = 0;
        // SAFETY: a context is current; `bytes` is valid to write.
        check("cuCtxGetLimit", unsafe { (functions.get_limit)(&mut bytes, LIMIT) }).unwrap();
        bytes
    }

    #[test]
    fn the_last_user_puts_the_limit_back() {
        let device = match Device::open(0) {
            Ok(device) if device.persisting_l2().0 > 0 => device,
            Ok(device) => return eprintln!("skipped: {} has no persisting lines", device.name()),
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let before = limit(&device);
        let (first, second) = (SetAside::new(&device).unwrap(), SetAside::new(&device).unwrap());
        // The driver may round up.
        assert!(limit(&device) >= device.persisting_l2().0);
        drop(first);
        assert!(limit(&device) >= device.persisting_l2().0);
        drop(second);
        assert_eq!(limit(&device), before);
    }
}
