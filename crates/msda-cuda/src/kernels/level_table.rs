//! The table of levels that kernels read: part of the argument, or in device memory if it is long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use msda::{Problem, Result};

use super::{Args, Call, Owned, Pointer, Resource};
use crate::driver::{Device, Memory};

/// Sizes of the table in the argument. A longer table lies in device memory.
const INLINE: [usize; 5] = [4, 8, 16, 32, 64];

/// Height, width, first position and first sample of each level, as 64-bit integers.
#[derive(Debug, Clone)]
pub(super) struct LevelTable(Vec<[usize; 4]>);

impl LevelTable {
    /// The table of a problem.
    pub(super) fn new(p: &Problem) -> Self {
        let ring = p.layout().ring();
        let mut sample = 0;
        let levels = p.levels().iter().zip(p.points());
        let rows = levels.map(|(level, points)| {
            let start = level.origin - ring * (level.pitch + 1);
            let row = [level.h, level.w, start, sample];
            sample += points;
            row
        });
        Self(rows.collect())
    }

    /// Entries in the argument: `INLINE_LEVELS` in the kernels. 0 if the table is in device memory.
    pub(super) fn inline(&self) -> usize {
        INLINE.into_iter().find(|&size| self.0.len() <= size).unwrap_or(0)
    }

    /// Adds the pointer to the table, null if the table is in the argument.
    pub(super) fn add_pointer(&self, args: &mut Args) {
        args.optional("table", (self.inline() == 0).then_some(Pointer::Owned(0)));
    }

    /// Adds the entries, or one entry of zeros if the table is in device memory.
    pub(super) fn add_entries(&self, args: &mut Args) {
        for i in 0..self.inline().max(1) {
            let [height, width, start, first_sample] =
                self.0.get(i).filter(|_| self.inline() > 0).copied().unwrap_or_default();
            args.i64("level[0].height", height);
            args.i64("level[0].width", width);
            args.i64("level[0].start", start);
            args.i64("level[0].first_sample", first_sample);
        }
    }

    /// Makes a call keep the table in device memory, if it is there.
    pub(super) fn keep(self, call: &mut Call) {
        if self.inline() == 0 {
            call.resource = Some(Arc::new(LongTable(self.0)));
        }
    }
}

/// A table that is too long for the argument.
#[derive(Debug)]
struct LongTable(Vec<[usize; 4]>);

/// Its address.
#[derive(Debug)]
struct Placed(u64);

impl Resource for LongTable {
    fn bytes(&self) -> usize {
        0
    }

    /// Tables stay allocated for the life of the process, one per content: a captured launch may
    /// outlive its plan.
    fn make(&self, device: &Device) -> Result<Box<dyn Owned>> {
        type Tables = HashMap<(usize, Vec<[usize; 4]>), Memory>;
        static TABLES: Mutex<Option<Tables>> = Mutex::new(None);
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = tables.get_or_insert_default();
        let key = (device.ordinal(), self.0.clone());
        if let Some(memory) = tables.get(&key) {
            return Ok(Box::new(Placed(memory.address())));
        }
        let bytes: Vec<u8> = self.0.iter().flatten().flat_map(|&n| (n as u64).to_le_bytes()).collect();
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
