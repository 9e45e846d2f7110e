//! A model of L1: an LRU cache with lines of 128 bytes in sectors of 32.
//!
//! Real caches have sets and handle misses out of order.

use std::collections::{HashMap, VecDeque};

/// Bytes of a line.
const LINE: u64 = 128;
/// Bytes of a sector. A miss loads one.
const SECTOR: u64 = 32;

/// A cache and its counts.
#[derive(Debug, Default)]
pub struct Cache {
    lines: HashMap<u64, (u8, u64)>,
    // Uses in order. Only the last use of a line counts.
    uses: VecDeque<(u64, u64)>,
    capacity: usize,
    clock: u64,
    /// Requested sectors.
    pub asked: u64,
    /// Sectors that hit.
    pub hits: u64,
}

impl Cache {
    /// An empty cache of this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { capacity: bytes / LINE as usize, ..Self::default() }
    }

    /// One load of a warp, which requests each sector once. Returns the number of lines that it
    /// looks up.
    pub fn read(&mut self, lanes: &[Option<u64>], width: usize) -> usize {
        let mut wanted: Vec<(u64, u8)> = Vec::with_capacity(8);
        for address in lanes.iter().flatten() {
            for sector in address / SECTOR..(address + width as u64).div_ceil(SECTOR) {
                let (line, bit) = (sector * SECTOR / LINE, 1u8 << (sector % (LINE / SECTOR)));
                match wanted.iter_mut().find(|(l, _)| *l == line) {
                    Some((_, bits)) => *bits |= bit,
                    None => wanted.push((line, bit)),
                }
            }
        }
        for &(line, bits) in &wanted {
            self.clock += 1;
            let (have, stamp) = self.lines.entry(line).or_insert((0, 0));
            self.asked += u64::from(bits.count_ones());
            self.hits += u64::from((bits & *have).count_ones());
            (*have, *stamp) = (*have | bits, self.clock);
            self.uses.push_back((line, self.clock));
            while self.lines.len() > self.capacity.max(1) {
                let Some((line, stamp)) = self.uses.pop_front() else { break };
                if self.lines.get(&line).is_some_and(|(_, last)| *last == stamp) {
                    self.lines.remove(&line);
                }
            }
        }
        wanted.len()
    }

    /// Sectors that missed.
    pub fn misses(&self) -> u64 {
        self.asked - self.hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_line_is_evicted() {
        let mut cache = Cache::new(2 * 128);
        let row = |line: u64| (0..4).map(|i| Some(line * 128 + i * 16)).collect::<Vec<_>>();
        assert_eq!(cache.read(&row(0), 16), 1);
        assert_eq!((cache.asked, cache.hits), (2, 0));
        cache.read(&row(1), 16);
        cache.read(&row(0), 16);
        assert_eq!(cache.hits, 2);
        cache.read(&row(2), 16); // evicts 1
        cache.read(&row(0), 16);
        assert_eq!(cache.hits, 4);
        cache.read(&row(1), 16);
        assert_eq!((cache.hits, cache.misses()), (4, 8));
        // Another sector of a cached line is a miss.
        cache.read(&[Some(128 + 64)], 16);
        assert_eq!(cache.misses(), 9);
    }
}
