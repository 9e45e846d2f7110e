//! `generic.cu`: takes every request.

use std::sync::Arc;

use msda::{Problem, Result};

use super::{Args, Call, Owned, Pointer, Prepared, Resource, blocks, with_options};
use crate::driver::{Device, Launch, Memory};
use crate::jit::Unit;
use crate::request::{Levels, Request, Slot, Target};

/// The table of levels in device memory: sizes, first positions, first samples.
#[derive(Debug)]
struct LevelTable {
    words: Vec<u64>,
    starts: usize,
    samples: usize,
}

#[derive(Debug)]
struct Placed {
    memory: Memory,
    starts: usize,
    samples: usize,
}

impl LevelTable {
    fn new(p: &Problem) -> Self {
        let ring = p.layout().ring();
        let mut words: Vec<u64> = p.levels().iter().flat_map(|l| [l.h as u64, l.w as u64]).collect();
        let starts = words.len();
        words.extend(p.levels().iter().map(|l| (l.origin - ring * (l.pitch + 1)) as u64));
        let samples = words.len();
        let mut first = 0;
        words.push(0);
        for &points in p.points() {
            first += points as u64;
            words.push(first);
        }
        Self { words, starts, samples }
    }
}

impl Resource for LevelTable {
    fn bytes(&self) -> usize {
        0
    }

    fn make(&self, device: &Device) -> Result<Box<dyn Owned>> {
        let bytes: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut memory = device.alloc(bytes.len())?;
        memory.write(0, &bytes)?;
        Ok(Box::new(Placed { memory, starts: self.starts, samples: self.samples }))
    }
}

impl Owned for Placed {
    fn word(&self, index: usize) -> u64 {
        self.memory.address() + 8 * [0, self.starts, self.samples][index] as u64
    }
}

pub(super) fn prepare(request: &Request<'_>, target: &Target) -> Call {
    let p = request.problem;
    let o = request.operands;
    let unit = with_options(Unit::new("generic.cu", "generic", target.arch), p, o.reference_numbers());
    let mut args = Args::default();
    for slot in [Slot::Value, Slot::Locations, Slot::Weights, Slot::Reference, Slot::Output] {
        args.pointer(slot);
        let element = slot.dtype(p).map_or(0, msda::Dtype::size);
        for stride in o[slot].strides {
            args.i64(stride.wrapping_mul(element) as i64);
        }
    }
    if request.levels == Levels::Device {
        args.pointer(Slot::Shapes);
        args.pointer(Slot::Starts);
    } else {
        args.pointer(Pointer::Owned(0));
        args.pointer(Pointer::Owned(1));
    }
    args.pointer(Pointer::Owned(2));
    for n in [p.batch(), p.queries(), p.heads(), p.channels(), p.levels().len(), p.positions()] {
        args.i64(n as i64);
    }
    let launch = Launch::new([blocks(p.output_len(), target), 1, 1], [256, 1, 1]);
    let mut call = Call::from(Prepared { unit, entry: "msda_forward", launch, args });
    call.resource = Some(Arc::new(LevelTable::new(p)));
    call
}
