//! The part of L2 that is set aside for persisting lines, and the window of memory that it keeps.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use msda::{Error, ErrorKind, Result};

use crate::functions::functions;
use msda_cuda::driver::{Device, StreamHandle, check};
use msda_cuda::kernels::{Hook, Owned, Resource};
use msda_cuda::{Addresses, Slot};

functions! {
    get_limit: "cuCtxGetLimit" => fn(*mut usize, u32),
    set_limit: "cuCtxSetLimit" => fn(u32, usize),
    reset: "cuCtxResetPersistingL2Cache" => fn(),
    get_device: "cuCtxGetDevice" => fn(*mut c_int),
    get_attribute: "cuDeviceGetAttribute" => fn(*mut c_int, u32, c_int),
    set_stream: "cuStreamSetAttribute" => fn(*mut c_void, u32, *const AccessPolicyWindow),
}

/// The value of a launch attribute, which has 64 bytes, with the window in its first 28.
#[repr(C)]
struct AccessPolicyWindow {
    base: u64,
    bytes: usize,
    hit_ratio: f32,
    hit: u32,
    miss: u32,
    rest: [u32; 9],
}

/// Numbers of cuda.h: the limit, attributes of a device and of a stream, properties of accesses.
const LIMIT: u32 = 6;
const MAX_PERSISTING: u32 = 108;
const MAX_WINDOW: u32 = 109;
const WINDOW: u32 = 1;
const NORMAL: u32 = 0;
const PERSISTING: u32 = 2;

/// The most bytes of L2 that a context can set aside for persisting lines, and the most bytes of a
/// window over them. 0 without such lines.
fn limits(device: &Device) -> Result<(usize, usize)> {
    let (functions, _bound) = (functions()?, device.bind_relaxed()?);
    let mut raw = 0;
    // SAFETY: a context is current; `raw` is valid to write.
    check("cuCtxGetDevice", unsafe { (functions.get_device)(&mut raw) })?;
    let number = |attribute| {
        let mut number = 0;
        // SAFETY: the device exists; `number` is valid to write.
        check("cuDeviceGetAttribute", unsafe { (functions.get_attribute)(&mut number, attribute, raw) })?;
        Ok(usize::try_from(number).unwrap_or(0))
    };
    Ok((number(MAX_PERSISTING)?, number(MAX_WINDOW)?))
}

/// L2 keeps the values of a call while one of its kernels runs. As much of L2 as the device allows
/// is set aside for them while the plan lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Persisting {
    /// The stage of the kernel.
    pub(crate) stage: usize,
    /// Bytes from the first value to the last.
    pub(crate) bytes: usize,
}

impl Resource for Persisting {
    fn bytes(&self) -> usize {
        0
    }

    fn make(&self, device: &Device) -> Result<Box<dyn Owned>> {
        let limits = limits(device)?;
        Ok(Box::new(L2Window { at: *self, limits, aside: SetAside::new(device, limits.0)? }))
    }
}

/// The window of a plan.
#[derive(Debug)]
struct L2Window {
    at: Persisting,
    limits: (usize, usize),
    aside: SetAside,
}

impl Owned for L2Window {
    /// Kernels need no address of it.
    fn word(&self, _index: usize) -> u64 {
        0
    }

    fn hook(&self) -> Option<&dyn Hook> {
        Some(self)
    }
}

impl Hook for L2Window {
    /// The stream has the window for one kernel. The next kernel runs without it.
    fn before(
        &self,
        stage: usize,
        at: &Addresses,
        _argument: &mut [u8],
        stream: StreamHandle<'_>,
    ) -> Result<()> {
        let bytes = if stage == self.at.stage { self.at.bytes.min(self.limits.1) } else { 0 };
        // If all lines of a larger window were persisting, they would evict each other.
        let kept = (self.limits.0 as f64 / bytes.max(1) as f64).min(1.0);
        let value = AccessPolicyWindow {
            base: at[Slot::Value],
            bytes,
            hit_ratio: kept as f32,
            hit: if bytes > 0 { PERSISTING } else { NORMAL },
            miss: NORMAL,
            rest: [0; 9],
        };
        let _bound = self.aside.0.bind()?;
        // SAFETY: a context is current, the stream lives, and the value is the one of that
        // attribute.
        check("cuStreamSetAttribute", unsafe { (functions()?.set_stream)(stream.raw(), WINDOW, &value) })
    }
}

/// The bytes that are set aside in the current context.
fn limit(functions: &Functions) -> Result<usize> {
    let mut bytes = 0;
    // SAFETY: `bytes` is valid to write.
    check("cuCtxGetLimit", unsafe { (functions.get_limit)(&mut bytes, LIMIT) })?;
    Ok(bytes)
}

/// The devices with a part set aside: the number of users, and the limit before the first. The last
/// user puts that limit back.
static SET_ASIDE: Mutex<BTreeMap<usize, (usize, usize)>> = Mutex::new(BTreeMap::new());

/// One user of the part of L2 that is set aside.
#[derive(Debug)]
struct SetAside(Device);

impl SetAside {
    /// Sets `most` bytes aside, or counts a further user.
    fn new(device: &Device, most: usize) -> Result<Self> {
        if most == 0 {
            let (subject, expected) = ("persisting lines in L2", "a device with such lines");
            return Err(Error::new(ErrorKind::Unsupported, subject, device.name(), expected));
        }
        let mut all = SET_ASIDE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((users, _)) = all.get_mut(&device.ordinal()) {
            *users += 1;
        } else {
            let (functions, _bound) = (functions()?, device.bind_relaxed()?);
            let before = limit(functions)?;
            // SAFETY: a context is current.
            check("cuCtxSetLimit", unsafe { (functions.set_limit)(LIMIT, most) })?;
            all.insert(device.ordinal(), (1, before));
        }
        Ok(Self(device.clone()))
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let mut all = SET_ASIDE.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((users, before)) = all.get_mut(&self.0.ordinal()) else { return };
        *users -= 1;
        if *users > 0 {
            return;
        }
        if let (Ok(functions), Ok(_bound)) = (functions(), self.0.bind_relaxed()) {
            // SAFETY: a context is current. A failure has no one to report to.
            let _ = unsafe { (functions.reset)() };
            // SAFETY: as above.
            let _ = unsafe { (functions.set_limit)(LIMIT, *before) };
        }
        all.remove(&self.0.ordinal());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_the_attribute_has_64_bytes() {
        assert_eq!((size_of::<AccessPolicyWindow>(), align_of::<AccessPolicyWindow>()), (64, 8));
    }

    #[test]
    fn the_last_user_puts_the_limit_back() {
        let device = match Device::open(0) {
            Ok(device) => device,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let (most, _) = limits(&device).unwrap();
        if most == 0 {
            return eprintln!("skipped: {} has no persisting lines", device.name());
        }
        let now = || {
            let _bound = device.bind().unwrap();
            limit(functions().unwrap()).unwrap()
        };
        let before = now();
        let [first, second] = [(); 2].map(|()| SetAside::new(&device, most).unwrap());
        // The driver may round up.
        assert!(now() >= most);
        drop(first);
        assert!(now() >= most);
        drop(second);
        assert_eq!(now(), before);
    }
}
