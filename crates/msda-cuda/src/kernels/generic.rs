//! `forward/generic.cu`: takes every request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use msda::{Dtype, Problem, Result};

use super::{Args, Call, Owned, Pointer, Prepared, Resource, blocks, with_options};
use crate::driver::{Device, Launch, Memory};
use crate::jit::Unit;
use crate::request::{Levels, Request, Slot, Target};

/// Sizes of the table of levels in the argument. A longer table lies in device memory.
const INLINE: [usize; 5] = [4, 8, 16, 32, 64];

/// The table of levels: height, width, first position, first sample of each.
fn table(p: &Problem) -> Vec<[i64; 4]> {
    let ring = p.layout().ring();
    let mut sample = 0;
    let levels = p.levels().iter().zip(p.points());
    let rows = levels.map(|(level, points)| {
        let start = level.origin - ring * (level.pitch + 1);
        let row = [level.h, level.w, start, sample].map(|n| n as i64);
        sample += points;
        row
    });
    rows.collect()
}

/// A table that is too long for the argument.
#[derive(Debug)]
struct LongTable(Vec<[i64; 4]>);

/// Its address.
#[derive(Debug)]
struct Placed(u64);

impl Resource for LongTable {
    fn bytes(&self) -> usize {
        0
    }

    /// Tables stay allocated for the life of the process, one per content: a captured launch may outlive its plan.
    fn make(&self, device: &Device) -> Result<Box<dyn Owned>> {
        type Tables = HashMap<(usize, Vec<[i64; 4]>), Memory>;
        static TABLES: Mutex<Option<Tables>> = Mutex::new(None);
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = tables.get_or_insert_default();
        let key = (device.ordinal(), self.0.clone());
        if let Some(memory) = tables.get(&key) {
            return Ok(Box::new(Placed(memory.address())));
        }
        let bytes: Vec<u8> = self.0.iter().flatten().flat_map(|n| n.to_le_bytes()).collect();
        let mut memory = device.alloc(bytes.len())?;
        memory.write(0, &bytes)?;
        let address = memory.address();
        tables.insert(key, memory);
        Ok(Box::new(Placed(address)))
    }
}

impl Owned for Placed {
    fn word(&self, _index: usize) -> u64 {
        self.0
    }
}

pub(super) fn prepare(request: &Request<'_>, target: &Target) -> Call {
    let p = request.problem;
    let o = request.operands;
    let table = table(p);
    let inline = INLINE.into_iter().find(|&size| table.len() <= size).unwrap_or(0);
    let mut args = Args::default();
    for slot in [Slot::Value, Slot::Locations, Slot::Weights, Slot::Reference, Slot::Output] {
        args.pointer(slot);
        let element = slot.dtype(p).map_or(0, Dtype::size);
        for stride in o[slot].strides {
            args.i64(stride.wrapping_mul(element) as i64);
        }
    }
    // 0 unless the levels are on the device.
    let on_device = request.levels == Levels::Device;
    for slot in [Slot::Shapes, Slot::Starts] {
        if on_device { args.pointer(slot) } else { args.i64(0) }
    }
    // 0 unless the table is too long for the argument.
    if inline == 0 {
        args.pointer(Pointer::Owned(0))
    } else {
        args.i64(0)
    }
    for n in [p.batch(), p.queries(), p.heads(), p.channels(), p.levels().len(), p.positions(), p.samples()] {
        args.i64(n as i64);
    }
    for i in 0..inline.max(1) {
        table.get(i).copied().unwrap_or_default().into_iter().for_each(|n| args.i64(n));
    }
    let unit = Unit::new("forward/generic.cu", format!("generic-l{inline}"), target.arch);
    let unit = with_options(unit, p, o.reference_numbers())
        .define("INLINE_LEVELS", inline)
        .define("ARGS_BYTES", args.bytes().len());
    let launch = Launch::new([blocks(p.output_len(), target), 1, 1], [256, 1, 1]);
    let mut call = Call::from(Prepared { unit, entry: "msda_forward_generic", launch, args });
    if inline == 0 {
        call.resource = Some(Arc::new(LongTable(table)));
    }
    call
}
