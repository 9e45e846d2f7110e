//! Wavefronts: cycles of the data path of shared memory and L1 that one instruction of a warp
//! takes.
//!
//! Both have 32 banks of 4 bytes, so 128 bytes per cycle. With 4 bytes per lane or less, all lanes
//! are served together; with 8 bytes, half a warp at a time; with 16 bytes, a quarter. A bank
//! delivers one word per cycle, to all lanes that need it, so the bank with the most different
//! words sets the number of cycles. In L1 the bank of a word is its place in a 128-byte line: two
//! rows of 64 bytes conflict when both are left halves or both are right halves.

/// Bytes of a word.
const WORD: u64 = 4;
/// Number of banks.
const BANKS: usize = 32;

/// Cycles for addresses of active lanes that are served together, with `width` bytes per lane. See
/// [`warp`].
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

/// Cycles for all lanes of a warp; none is an inactive lane.
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

/// Cycles of shared memory for all lanes of a warp. Two neighbouring groups are served together if
/// they need one word per bank, as when lanes read the same word.
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

/// The fewest possible cycles: one per group that is served together, or more if a group needs more
/// than 128 bytes.
pub fn least(lanes: &[Option<u64>], width: usize) -> usize {
    let together = if width <= 4 { 32 } else { 128 / width.min(16) };
    lanes.chunks(together).filter(|lanes| lanes.iter().any(Option::is_some)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_halves_of_lines_conflict() {
        // Eight lanes of 16 bytes: two rows of 64 bytes.
        let rows =
            |a: u64, b: u64| (0..4).map(|i| a + 16 * i).chain((0..4).map(|i| b + 16 * i)).collect::<Vec<_>>();
        assert_eq!(wavefronts(&rows(0, 64), 16), 1);
        assert_eq!(wavefronts(&rows(0, 128 + 64), 16), 1);
        assert_eq!(wavefronts(&rows(0, 128), 16), 2);
        assert_eq!(wavefronts(&rows(0, 0), 16), 1, "equal words are delivered once");
    }

    #[test]
    fn a_warp_is_served_in_groups() {
        let lanes = |width: u64| (0..32).map(|i| Some(i * width)).collect::<Vec<_>>();
        assert_eq!((warp(&lanes(4), 4), warp(&lanes(8), 8), warp(&lanes(16), 16)), (1, 2, 4));
        assert_eq!(warp(&lanes(128), 4), 32, "all in one bank");
        assert_eq!(warp(&[None; 32], 4), 0);
        // Eight lanes read the same: four lane groups per warp.
        let items = |width: u64| (0..32).map(|i| Some(i / 8 * width)).collect::<Vec<_>>();
        assert_eq!((shared(&items(8), 8), shared(&items(16), 16)), (1, 2));
        assert_eq!((shared(&lanes(8), 8), shared(&lanes(16), 16)), (2, 4));
        assert_eq!((least(&lanes(16), 16), least(&lanes(4), 4), least(&[None; 32], 4)), (4, 1, 0));
        assert_eq!(warp(&lanes(2), 2), 1);
    }
}
