//! A call: the stages that a plan queues, in order, and the device memory that they need.

use std::borrow::Cow;
use std::sync::Arc;
use std::{fmt, mem};

use msda::Result;

use super::Args;
use crate::driver::{Device, Launch, StreamHandle};
use crate::jit::Unit;
use crate::request::Addresses;

/// Everything that one call queues.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// The workspace that they share.
    pub arena: Arena,
    /// Objects that must exist before a launch and live as long as the plan, such as textures.
    pub resource: Option<Arc<dyn Resource>>,
    /// The next stage does not wait for the one before it.
    branched: bool,
    /// Other stages that the next stage waits for.
    joins: Vec<usize>,
}

/// One stage of a call, and why it is there.
#[derive(Debug, Clone)]
pub struct Stage {
    /// What is queued.
    pub action: Action,
    /// The stages that must be done before it. They come earlier.
    pub after: Vec<usize>,
    /// The reason, for people.
    pub why: Cow<'static, str>,
}

/// What a stage queues.
#[derive(Debug, Clone)]
pub enum Action {
    /// Sets a region of the workspace to zero.
    Clear(Region),
    /// Launches a kernel.
    Run(Box<Prepared>),
}

/// A kernel ready to be compiled and launched.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// What is compiled.
    pub unit: Unit,
    /// Its entry point.
    pub entry: &'static str,
    /// Grid, block, cluster and shared memory.
    pub launch: Launch,
    /// Its one argument.
    pub args: Args,
}

impl Call {
    /// Adds a kernel. It gets the macros by which it compares its argument.
    pub fn run(&mut self, mut prepared: Prepared, why: impl Into<Cow<'static, str>>) {
        prepared.unit = prepared.args.compared(prepared.unit);
        self.add(Action::Run(Box::new(prepared)), why.into());
    }

    /// Adds a stage that sets a region of the workspace to zero.
    pub fn clear(&mut self, region: Region, why: impl Into<Cow<'static, str>>) {
        self.add(Action::Clear(region), why.into());
    }

    /// The next stage need not wait for the stages before it.
    pub fn branch(&mut self) {
        self.branched = true;
    }

    /// The next stage also waits for that stage.
    pub fn join(&mut self, stage: usize) {
        self.joins.push(stage);
    }

    fn add(&mut self, action: Action, why: Cow<'static, str>) {
        let mut after = mem::take(&mut self.joins);
        if !mem::take(&mut self.branched) {
            after.extend(self.stages.len().checked_sub(1));
        }
        after.sort_unstable();
        after.dedup();
        self.stages.push(Stage { action, after, why });
    }

    /// Whether some stages may run at the same time.
    pub fn branches(&self) -> bool {
        self.stages.iter().enumerate().any(|(i, stage)| i > 0 && stage.after != [i - 1])
    }

    /// Device memory that a plan of it owns, in bytes.
    pub fn owned_bytes(&self) -> usize {
        self.resource.as_ref().map_or(0, |resource| resource.bytes())
    }

    /// The last kernel: the one that writes the output.
    pub fn last(&self) -> Option<&Prepared> {
        self.kernels().last()
    }

    /// Its kernels, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &Prepared> {
        self.stages.iter().filter_map(|stage| match &stage.action {
            Action::Run(prepared) => Some(&**prepared),
            Action::Clear(_) => None,
        })
    }
}

impl From<Prepared> for Call {
    fn from(prepared: Prepared) -> Self {
        let mut call = Self::default();
        call.run(prepared, "computes the output");
        call
    }
}

/// The workspace of a call while it is laid out: reserves regions and hands out their offsets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arena {
    bytes: usize,
}

/// A part of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Its first byte, a multiple of 16.
    pub offset: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

impl Arena {
    /// Every region begins at a multiple of so many bytes from the start of the workspace.
    pub const ALIGN: usize = 256;

    /// Reserves a region. A workspace of more bytes than an address can count saturates, and
    /// allocating it fails.
    pub fn reserve(&mut self, bytes: usize) -> Region {
        let offset = self.bytes.checked_next_multiple_of(Self::ALIGN).unwrap_or(usize::MAX);
        self.bytes = offset.saturating_add(bytes);
        Region { offset, bytes }
    }

    /// The size of the workspace in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Describes objects that a plan makes once and owns.
pub trait Resource: fmt::Debug + Send + Sync {
    /// Device memory that they take, in bytes.
    fn bytes(&self) -> usize;

    /// Makes them.
    fn make(&self, device: &Device) -> Result<Box<dyn Owned>>;
}

/// Objects that a plan owns. Launches of such a plan must not overlap: each writes what it then
/// reads.
pub trait Owned: fmt::Debug + Send + Sync {
    /// The address or handle with that number: see [`super::Pointer::Owned`].
    fn word(&self, index: usize) -> u64;

    /// What is called before every kernel of a launch. Most objects need nothing.
    fn hook(&self) -> Option<&dyn Hook> {
        None
    }
}

/// Prepares the launch of a kernel from its addresses, for kernels of other crates.
pub trait Hook {
    /// Called before the kernel of stage `stage` is queued. It may change the kernel's argument and
    /// the attributes of the stream.
    fn before(
        &self,
        stage: usize,
        at: &Addresses,
        argument: &mut [u8],
        stream: StreamHandle<'_>,
    ) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_and_do_not_overlap() {
        let mut arena = Arena::default();
        assert_eq!(arena.reserve(10), Region { offset: 0, bytes: 10 });
        assert_eq!(arena.reserve(1000), Region { offset: 256, bytes: 1000 });
        assert_eq!(arena.reserve(0), Region { offset: 1280, bytes: 0 });
        assert_eq!(arena.bytes(), 1280);
        arena.reserve(usize::MAX);
        assert_eq!(arena.bytes(), usize::MAX);
        arena.reserve(1);
        assert_eq!(arena.bytes(), usize::MAX);
    }
}
