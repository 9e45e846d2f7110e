//! A call made ready: a kernel chosen, compiled and laid out, to be launched any number of times.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::{ptr, slice};

use msda::{Error, ErrorKind, Problem, Result};

use crate::choose::{Choice, choices};
use crate::driver::{Chain, Device, Function, Launch, Memory, Node, StreamHandle, Texture, fill_async};
use crate::jit;
use crate::kernels::{self, Block, Hole, Kernel, Own, Prepared, Stage};
use crate::request::{Levels, Operands, Request, Target};

/// The most bytes that a kernel's argument has: what every driver takes.
const MAX_ARGS: usize = 4096;

/// Dynamic shared memory that a block may have without being asked for.
const DEFAULT_SHARED: u32 = 48 << 10;

/// Device addresses of a call's tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The value pyramid.
    pub value: u64,
    /// Locations, or offsets.
    pub locations: u64,
    /// Weights, or logits.
    pub weights: u64,
    /// Reference points; 0 in the plain form.
    pub reference: u64,
    /// The output.
    pub output: u64,
    /// `(L, 2)` heights and widths as 64-bit integers; only for plans with levels on the device.
    pub shapes: u64,
    /// `(L)` first positions as 64-bit integers; only for plans with levels on the device.
    pub starts: u64,
    /// [`Plan::workspace`] bytes, aligned to 16, that no other call uses at the same time.
    pub workspace: u64,
}

/// A call made ready. Launching it allocates nothing and waits for nothing, and can be captured in a graph.
#[derive(Debug)]
pub struct Plan {
    device: Device,
    choice: Choice,
    /// Its kernels as one, where there is nothing else to queue.
    chained: Mutex<Option<Chained>>,
    steps: Vec<Step>,
    /// Sizes, starts and first samples of the levels, where a kernel reads them from memory.
    table: Option<Table>,
    /// What it reads through textures.
    own: Option<Owned>,
    operands: Operands,
    empty: bool,
    on_device: bool,
    workspace: usize,
}

#[derive(Debug)]
enum Step {
    Clear { at: usize, bytes: usize },
    Run(Box<Kept>),
}

/// Memory of a plan's own and its textures, which go first.
#[derive(Debug)]
struct Owned {
    textures: Vec<Texture>,
    memory: Memory,
}

/// Kernels that are queued together, with the arguments that they have now.
#[derive(Debug)]
struct Chained {
    chain: Chain,
    args: Vec<Vec<u64>>,
    /// The first that it was queued on. Launches of a chain wait for each other: those on other streams go without it.
    stream: Option<usize>,
}

/// Room for a kernel's argument.
type Argument = [MaybeUninit<u64>; MAX_ARGS / 8];

/// A kernel that is loaded.
#[derive(Debug)]
struct Kept {
    function: Function,
    launch: Launch,
    args: Block,
}

#[derive(Debug)]
struct Table {
    memory: Memory,
    starts: u64,
    samples: u64,
}

impl Plan {
    /// Chooses a kernel and makes it ready.
    pub fn new(device: &Device, problem: &Problem, operands: &Operands, levels: Levels) -> Result<Self> {
        Self::of(device, &Request { levels, ..Request::new(problem, operands) })
    }

    /// Chooses a kernel for a request and makes it ready. One that does not compile gives way to the next.
    pub fn of(device: &Device, request: &Request<'_>) -> Result<Self> {
        let mut failed: Option<(Kernel, Error)> = None;
        for Choice { kernel, why } in choices(request, &Target::of(device)) {
            let why = match &failed {
                Some((other, error)) => format!("{why}; {other} was to be taken: {error}"),
                None => why,
            };
            match Self::with(device, request, Choice { kernel, why }) {
                Err(error) if error.kind() == ErrorKind::Compile => failed = failed.or(Some((kernel, error))),
                made => return made,
            }
        }
        Err(failed.map_or_else(
            || Error::new(ErrorKind::Compile, "kernel", "none", "one that compiles"),
            |(_, e)| e,
        ))
    }

    /// Makes a certain kernel ready, if it takes the request.
    pub fn with_kernel(device: &Device, request: &Request<'_>, kernel: Kernel) -> Result<Self> {
        if let Some(why) = kernel.refuses(request, &Target::of(device)) {
            let expected = "a kernel that takes the problem";
            return Err(Error::new(ErrorKind::Unsupported, format!("kernel {kernel}"), why, expected)
                .hint("`msda kernels` says which kernels take a problem, and why others do not"));
        }
        Self::with(device, request, Choice { kernel, why: "asked for".into() })
    }

    fn with(device: &Device, request: &Request<'_>, choice: Choice) -> Result<Self> {
        let target = Target::of(device);
        let p = request.problem;
        check_alignment(request)?;
        let empty = p.output_len() == 0;
        let mut steps = Vec::new();
        let (mut workspace, mut own) = (0, None);
        if !empty {
            let call = choice.kernel.prepare(request, &target);
            workspace = call.workspace;
            own = Owned::new(device, &call.own)?;
            for stage in call.stages {
                steps.push(match stage {
                    Stage::Clear { at, bytes } => Step::Clear { at, bytes },
                    Stage::Run(prepared) => Step::Run(Box::new(Kept::load(device, prepared)?)),
                });
            }
        }
        let reads_table =
            kernels(&steps).any(|k| k.args.holes().iter().any(|(hole, _)| *hole == Hole::Samples));
        let table = if reads_table { Some(Table::new(device, p)?) } else { None };
        // Without a chain a launch costs the host more, and does the same.
        let chained = Mutex::new(Chained::new(&steps).ok().flatten());
        Ok(Self {
            device: device.clone(),
            choice,
            chained,
            steps,
            table,
            own,
            operands: request.operands.clone(),
            empty,
            on_device: request.levels == Levels::Device,
            workspace,
        })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The kernel, and why it was taken.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Bytes of device memory that a launch needs for itself.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// Bytes of device memory that the plan has for itself: where there are any, one launch writes what another reads.
    pub fn owned(&self) -> usize {
        self.own.as_ref().map_or(0, |own| own.memory.len())
    }

    /// Kernels that a launch queues.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        kernels(&self.steps).map(|kept| &kept.function)
    }

    /// Queues the call on a stream.
    ///
    /// # Safety
    /// The addresses are of device memory that the plan's device can reach, of tensors that lie as the plan's operands
    /// say; the output overlaps no input, nor itself; they live, and nobody else writes to them or reads the output,
    /// until `stream` got there; the plan lives until then. Launches of a plan that [owns](Self::owned) memory do not
    /// overlap.
    pub unsafe fn launch(&self, at: &Addresses, stream: StreamHandle<'_>) -> Result<()> {
        if self.empty {
            return Ok(());
        }
        self.check(at)?;
        // SAFETY: the caller's promise.
        if unsafe { self.launch_chained(at, stream)? } {
            return Ok(());
        }
        for step in &self.steps {
            match step {
                Step::Clear { at: offset, bytes } => {
                    // SAFETY: the caller's promise: the workspace is as long as the plan says.
                    unsafe { fill_async(&self.device, at.workspace + *offset as u64, 0, *bytes, stream)? };
                }
                // SAFETY: the caller's promise, and the arguments were laid out for the kernel.
                Step::Run(kept) => unsafe { kept.launch(|hole| self.address(at, hole), stream)? },
            }
        }
        Ok(())
    }

    /// Queues all kernels at once, if they can be: not while another thread does, nor on another stream than at first, nor
    /// while the stream records.
    unsafe fn launch_chained(&self, at: &Addresses, stream: StreamHandle<'_>) -> Result<bool> {
        let Ok(mut place) = self.chained.try_lock() else { return Ok(false) };
        let Some(Chained { chain, args, stream: first }) = place.as_mut() else { return Ok(false) };
        let here = stream.raw().addr();
        if stream.is_per_thread() || first.is_some_and(|first| first != here) {
            return Ok(false);
        }
        let _bound = self.device.bind()?;
        if stream.is_capturing(&self.device).unwrap_or(true) {
            return Ok(false);
        }
        for (i, (kept, now)) in kernels(&self.steps).zip(args).enumerate() {
            let mut room: Argument = [MaybeUninit::uninit(); MAX_ARGS / 8];
            let arg = kept.argument(|hole| self.address(at, hole), &mut room)?;
            if arg == now.as_slice() {
                continue;
            }
            // SAFETY: an argument of that kernel.
            if unsafe { chain.set_argument(i, arg.as_mut_ptr().cast()) }.is_err() {
                // What this driver does not do it need not be asked for again.
                *place = None;
                return Ok(false);
            }
            now.copy_from_slice(arg);
        }
        // SAFETY: the caller's promise; the stream does not record.
        unsafe { chain.launch(stream)? };
        *first = Some(here);
        Ok(true)
    }

    fn address(&self, at: &Addresses, hole: Hole) -> u64 {
        let table = self.table.as_ref();
        match hole {
            Hole::Value => at.value,
            Hole::Locations => at.locations,
            Hole::Weights => at.weights,
            Hole::Reference => at.reference,
            Hole::Output => at.output,
            Hole::Workspace(offset) => at.workspace + offset as u64,
            Hole::Own(offset) => self.own.as_ref().map_or(0, |own| own.memory.address() + offset as u64),
            Hole::Texture(i) => {
                self.own.as_ref().and_then(|own| own.textures.get(i)).map_or(0, Texture::handle)
            }
            Hole::Shapes if self.on_device => at.shapes,
            Hole::Starts if self.on_device => at.starts,
            Hole::Shapes => table.map_or(0, |t| t.memory.address()),
            Hole::Starts => table.map_or(0, |t| t.starts),
            Hole::Samples => table.map_or(0, |t| t.samples),
        }
    }

    /// What can be told of addresses without asking the driver.
    fn check(&self, at: &Addresses) -> Result<()> {
        let o = &self.operands;
        let levels = if self.on_device { 8 } else { 0 };
        let wanted = [
            ("value", at.value, o.value.align),
            ("locations", at.locations, o.locations.align),
            ("weights", at.weights, o.weights.align),
            ("reference", at.reference, o.reference.map_or(0, |(_, operand)| operand.align)),
            ("output", at.output, o.output.align),
            ("level shapes", at.shapes, levels),
            ("level starts", at.starts, levels),
            ("workspace", at.workspace, if self.workspace > 0 { 16 } else { 0 }),
        ];
        for (name, address, align) in wanted {
            // What has no elements has no address; it is not read.
            if align > 0 && address % align as u64 != 0 {
                let got = format!("{address:#x}");
                let expected = format!("a multiple of {align}, as the plan was made for");
                return Err(Error::new(ErrorKind::Shape, format!("address of {name}"), got, expected)
                    .hint("make the plan with the alignment that the tensors have"));
            }
        }
        let needed = [
            ("output", at.output, true),
            ("workspace", at.workspace, self.workspace > 0),
            ("level shapes", at.shapes, self.on_device),
            ("level starts", at.starts, self.on_device),
        ];
        match needed.iter().find(|(_, address, needed)| *needed && *address == 0) {
            Some((name, _, _)) => {
                Err(Error::new(ErrorKind::Shape, format!("address of {name}"), "0", "device memory"))
            }
            None => Ok(()),
        }
    }
}

/// An alignment is a power of two, and no less than the elements need.
fn check_alignment(request: &Request<'_>) -> Result<()> {
    let (o, t) = (request.operands, request.problem.types());
    let operands = [
        ("value", o.value, t.value),
        ("locations", o.locations, t.locations),
        ("weights", o.weights, t.weights),
        ("reference", o.reference.map_or(o.locations, |(_, operand)| operand), t.locations),
        ("output", o.output, t.value),
    ];
    match operands.iter().find(|(_, o, t)| !o.align.is_power_of_two() || o.align < t.size()) {
        None => Ok(()),
        Some((name, operand, dtype)) => {
            let expected = format!("a power of two, at least the {} bytes of {dtype}", dtype.size());
            Err(Error::new(ErrorKind::Shape, format!("alignment of {name}"), operand.align, expected))
        }
    }
}

fn kernels(steps: &[Step]) -> impl Iterator<Item = &Kept> {
    steps.iter().filter_map(|step| match step {
        Step::Run(kept) => Some(&**kept),
        Step::Clear { .. } => None,
    })
}

impl Kept {
    fn load(device: &Device, prepared: Prepared) -> Result<Self> {
        let Prepared { unit, entry, launch, args } = prepared;
        if args.bytes().len() > MAX_ARGS {
            let got = format!("{} bytes", args.bytes().len());
            return Err(Error::new(ErrorKind::Unsupported, "kernel argument", got, format!("{MAX_ARGS}")));
        }
        let function = jit::load(device, &unit)?.function(entry)?;
        if launch.shared > DEFAULT_SHARED {
            // Others use the same function with more or less: whatever the device has.
            let most = (device.shared_per_block() as u32).saturating_sub(function.shared_bytes()?);
            function.allow_shared(most)?;
        }
        if launch.cluster != [1; 3] && function.max_clusters(&launch)? == 0 {
            let got = format!("{:?} blocks of {} bytes of shared memory", launch.cluster, launch.shared);
            return Err(Error::new(ErrorKind::Unsupported, "cluster", got, "one that fits the device")
                .hint("fewer blocks, or less shared memory"));
        }
        Ok(Self { function, launch, args })
    }

    /// Whether the device takes its blocks in fewer than two rounds.
    fn is_short(&self) -> Result<bool> {
        let Launch { grid, block, shared, .. } = self.launch;
        let blocks: u64 = grid.iter().map(|&n| u64::from(n)).product();
        let resident = self.function.occupancy(block.iter().product(), shared)?;
        let device = self.function.module().device();
        Ok(blocks < 2 * u64::from(resident) * u64::from(device.multiprocessors()))
    }

    /// Its argument, in whole words.
    fn argument<'a>(&self, address: impl Fn(Hole) -> u64, room: &'a mut Argument) -> Result<&'a mut [u64]> {
        let words = &mut room[..self.words()];
        words.fill(MaybeUninit::new(0));
        // SAFETY: all of them were written.
        let words: &'a mut [u64] = unsafe { &mut *(ptr::from_mut(words) as *mut [u64]) };
        let mut put = |at: usize, bytes: &[u8]| {
            assert!(at + bytes.len() <= 8 * words.len(), "holes are inside of the argument");
            // SAFETY: so many bytes are there.
            unsafe {
                words.as_mut_ptr().cast::<u8>().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
            };
        };
        put(0, self.args.bytes());
        for &(hole, offset) in self.args.holes() {
            put(offset, &address(hole).to_ne_bytes());
        }
        for (map, offset) in self.args.maps() {
            let map = map.encode(self.function.module().device(), address(map.hole))?;
            // SAFETY: a description is 128 bytes.
            put(*offset, unsafe { slice::from_raw_parts((&raw const map).cast(), 128) });
        }
        Ok(words)
    }

    /// Words of its argument: `load` saw to it that they fit.
    fn words(&self) -> usize {
        self.args.bytes().len().div_ceil(8)
    }

    unsafe fn launch(&self, address: impl Fn(Hole) -> u64, stream: StreamHandle<'_>) -> Result<()> {
        let mut room: Argument = [MaybeUninit::uninit(); MAX_ARGS / 8];
        let arg = self.argument(address, &mut room)?;
        // SAFETY: the kernel has one parameter, which is there; the rest is the caller's promise.
        unsafe { self.function.launch(&self.launch, stream, &mut [arg.as_mut_ptr().cast::<c_void>()]) }
    }
}

impl Chained {
    /// Of kernels with nothing between them, if it pays: one that is over soon goes by itself, for it begins a little earlier so.
    fn new(steps: &[Step]) -> Result<Option<Self>> {
        let kept: Vec<&Kept> = kernels(steps).collect();
        if kept.len() < steps.len() {
            return Ok(None);
        }
        match kept.as_slice() {
            [] => return Ok(None),
            [one] if one.is_short()? => return Ok(None),
            _ => (),
        }
        let mut args: Vec<Vec<u64>> = kept.iter().map(|kept| vec![0; kept.words()]).collect();
        let nodes = kept.iter().zip(&mut args).map(|(kept, arg)| {
            let (function, launch, arg) = (&kept.function, &kept.launch, arg.as_mut_ptr().cast());
            Node::Kernel { function, launch, arg }
        });
        let nodes: Vec<_> = nodes.collect();
        // SAFETY: each kernel has one parameter, for which there is room. The plan's functions are dropped after its chain.
        let chain = unsafe { Chain::new(kept[0].function.module().device(), &nodes)? };
        Ok(Some(Self { chain, args, stream: None }))
    }
}

impl Owned {
    fn new(device: &Device, own: &Own) -> Result<Option<Self>> {
        if own.bytes == 0 {
            return Ok(None);
        }
        let mut memory = device.alloc(own.bytes)?;
        memory.fill(0)?;
        let textures =
            own.textures.iter().map(|texels| Texture::new(&memory, texels)).collect::<Result<_>>()?;
        Ok(Some(Self { textures, memory }))
    }
}

impl Table {
    fn new(device: &Device, p: &Problem) -> Result<Self> {
        let ring = p.layout().ring();
        let mut words: Vec<u64> = Vec::new();
        words.extend(p.levels().iter().flat_map(|l| [l.h as u64, l.w as u64]));
        let starts = words.len();
        words.extend(p.levels().iter().map(|l| (l.origin - ring * (l.pitch + 1)) as u64));
        let samples = words.len();
        let mut first = 0;
        words.push(0);
        for &points in p.points() {
            first += points as u64;
            words.push(first);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut memory = device.alloc(bytes.len())?;
        memory.write(0, &bytes)?;
        let at = |word: usize| memory.address() + 8 * word as u64;
        Ok(Self { starts: at(starts), samples: at(samples), memory })
    }
}

/// A copy of value from one layout to another, made ready.
#[derive(Debug)]
pub struct Packing {
    step: Kept,
    table: Memory,
    empty: bool,
}

impl Packing {
    /// From the layout of one problem to that of another, both dense; see [`msda::pack`].
    pub fn new(device: &Device, from: &Problem, to: &Problem) -> Result<Self> {
        use crate::request::Operand;
        let same =
            |p: &Problem| (p.batch(), p.heads(), p.channels(), p.spec().levels.clone(), p.types().value);
        if same(from) != same(to) {
            let expected = "the same images, heads, channels, levels and value type";
            return Err(Error::new(ErrorKind::Shape, "packing", format!("{from} to {to}"), expected));
        }
        let dense = |p| Operand::dense(p, msda::Role::Value);
        let (prepared, table) = kernels::pack((from, dense(from)), (to, dense(to)), &Target::of(device));
        let mut memory = device.alloc(table.len())?;
        memory.write(0, &table)?;
        Ok(Self { step: Kept::load(device, prepared)?, table: memory, empty: to.value_len() == 0 })
    }

    /// Queues the copy.
    ///
    /// # Safety
    /// Both addresses are of device memory that the device can reach, of dense tensors as the problems say; they
    /// live and nobody else uses them in a conflicting way until `stream` got there; the packing lives until then.
    pub unsafe fn launch(&self, from: u64, to: u64, stream: StreamHandle<'_>) -> Result<()> {
        if self.empty {
            return Ok(());
        }
        let address = |hole| match hole {
            Hole::Value => from,
            Hole::Output => to,
            _ => self.table.address(),
        };
        // SAFETY: the caller's promise.
        unsafe { self.step.launch(address, stream) }
    }
}
