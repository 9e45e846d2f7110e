//! How often the data path of shared memory and of the first-level cache is used by one instruction of a warp.
//!
//! Both have 32 banks of 4 bytes, 128 bytes a cycle. Lanes of 4 bytes or less are served together; of 8 bytes, half
//! a warp at a time; of 16 bytes, a quarter at a time. Within that, a bank gives one word a cycle to all lanes that
//! want it: as many cycles are needed as some bank has different words to give. In the cache a word's bank is its
//! place within a 128-byte line, so two rows of 64 bytes collide when both are left halves or both right halves.

/// Bytes of a bank's word.
const WORD: u64 = 4;
/// Banks.
const BANKS: usize = 32;

/// Cycles of the data path for the lanes' addresses, each reading or writing `width` bytes. Lanes that do nothing are
/// not among the addresses: give each group of lanes that is served together by itself, or use [`warp`].
pub fn wavefronts(addresses: &[u64], width: usize) -> usize {
    let end = |address: u64| (address + width.max(1) as u64).div_ceil(WORD);
    let mut words: Vec<u64> = addresses.iter().flat_map(|&address| address / WORD..end(address)).collect();
    words.sort_unstable();
    words.dedup();
    let mut banks = [0; BANKS];
    for word in words {
        banks[(word % BANKS as u64) as usize] += 1;
    }
    banks.into_iter().max().unwrap_or(0)
}

/// The same for all lanes of a warp, none standing for a lane that does nothing.
pub fn warp(lanes: &[Option<u64>], width: usize) -> usize {
    let together = match width {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let group =
        |lanes: &[Option<u64>]| wavefronts(&lanes.iter().flatten().copied().collect::<Vec<_>>(), width);
    lanes.chunks(together).map(group).sum()
}

/// The same for shared memory, where two neighbouring groups of lanes are served together if that asks for one word a
/// bank, as when several lanes want the same.
pub fn shared(lanes: &[Option<u64>], width: usize) -> usize {
    let two = match width {
        0..=4 => return warp(lanes, width),
        5..=8 => 32,
        _ => 16,
    };
    let pair = |lanes: &[Option<u64>]| {
        let all: Vec<u64> = lanes.iter().flatten().copied().collect();
        if wavefronts(&all, width) <= 1 { usize::from(!all.is_empty()) } else { warp(lanes, width) }
    };
    lanes.chunks(two).map(pair).sum()
}

/// The least that [`warp`] could be: one cycle for each group of lanes that is served together, or more where they
/// want more than 128 bytes.
pub fn least(lanes: &[Option<u64>], width: usize) -> usize {
    let together = if width <= 4 { 32 } else { 128 / width.min(16) };
    lanes.chunks(together).filter(|lanes| lanes.iter().any(Option::is_some)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_lines_collide_with_their_like() {
        // Eight lanes of 16 bytes: two rows of 64 bytes.
        let rows =
            |a: u64, b: u64| (0..4).map(|i| a + 16 * i).chain((0..4).map(|i| b + 16 * i)).collect::<Vec<_>>();
        assert_eq!(wavefronts(&rows(0, 64), 16), 1);
        assert_eq!(wavefronts(&rows(0, 128 + 64), 16), 1);
        assert_eq!(wavefronts(&rows(0, 128), 16), 2);
        assert_eq!(wavefronts(&rows(0, 0), 16), 1, "the same words are given once");
    }

    #[test]
    fn a_warp_is_served_in_parts() {
        let lanes = |width: u64| (0..32).map(|i| Some(i * width)).collect::<Vec<_>>();
        assert_eq!((warp(&lanes(4), 4), warp(&lanes(8), 8), warp(&lanes(16), 16)), (1, 2, 4));
        assert_eq!(warp(&lanes(128), 4), 32, "all in one bank");
        assert_eq!(warp(&[None; 32], 4), 0);
        // Eight lanes that want the same: four items of a warp.
        let items = |width: u64| (0..32).map(|i| Some(i / 8 * width)).collect::<Vec<_>>();
        assert_eq!((shared(&items(8), 8), shared(&items(16), 16)), (1, 2));
        assert_eq!((shared(&lanes(8), 8), shared(&lanes(16), 16)), (2, 4));
        assert_eq!((least(&lanes(16), 16), least(&lanes(4), 4), least(&[None; 32], 4)), (4, 1, 0));
        assert_eq!(warp(&lanes(2), 2), 1);
    }
}
